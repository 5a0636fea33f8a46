"""ONNX Runtime sessions as the small models of `voice` need them."""

from __future__ import annotations

from pathlib import Path

import onnxruntime


def open_session(model: Path | bytes, num_threads: int) -> onnxruntime.InferenceSession:
    """Load `model`, a file or its content, for the CPU with 1 or more compute threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # A waiting thread that spins takes the core that the language model needs meanwhile.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    graph = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
