"""Forwards in ONNX Runtime on the CPU, the default there.

In: steps of the canvas with their caches. Out: the best token of each asked row and its
probability. Knows nothing of requests, drafts or text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from llm.engine.canvas import Prediction, Step
from llm.models.built import BuiltModel
from llm.models.onnx_graph import cache_names
from llm.models.spec import DiffusionSpec, TransformerConfig

MIN_ROWS = 2
"""A single row takes another path through the matrix products, with other last bits."""


class OnnxCache:
    """Keys and values of one sequence, one array [1, kv_heads, capacity, head_size] per cache."""

    def __init__(self, config: TransformerConfig, capacity: int) -> None:
        shape = (1, config.num_kv_heads, capacity + MIN_ROWS, config.head_size)
        self.arrays = [np.zeros(shape, np.float32) for _ in cache_names(config)]


class OnnxRunner:
    """Runs a built model for the engine.

    num_threads: compute threads, 0 = one for each core.
    """

    def __init__(self, model: BuiltModel, spec: DiffusionSpec, num_threads: int = 0) -> None:
        self._model = model
        self._spec = spec
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        # Spinning threads take the core that speech recognition and synthesis need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            str(model.graph), options, providers=["CPUExecutionProvider"]
        )
        self._cache_names = cache_names(model.config)

    @property
    def context_length(self) -> int:
        """Positions that a sequence may have at most."""
        return self._model.config.context_length - MIN_ROWS

    def open_cache(self, capacity: int) -> OnnxCache:
        """A cache for one sequence of at most `capacity` positions."""
        return OnnxCache(self._model.config, capacity)

    def forward(self, steps: Sequence[tuple[OnnxCache, Step]]) -> list[list[Prediction]]:
        """One forward for each (cache, step); returns the predictions that each step asks for."""
        return [self._run(cache, step) for cache, step in steps]

    def _run(self, cache: OnnxCache, step: Step) -> list[Prediction]:
        num_rows = len(step.tokens)
        tokens = np.array(step.tokens + (self._spec.mask_id,) * (MIN_ROWS - num_rows))
        end = step.start + len(tokens)
        visible = step.start + 1 + np.arange(len(tokens))
        visible[step.num_causal :] = step.start + num_rows
        visible[num_rows:] = end
        bias = np.where(np.arange(end) < visible[:, None], 0, -np.inf).astype(np.float32)
        embedded = self._model.embedding[tokens].astype(np.float32)
        embedded *= self._model.embedding_scale[tokens, None]
        binding = self._session.io_binding()
        binding.bind_cpu_input("hidden", embedded[None])
        binding.bind_cpu_input("bias", bias[None, None])
        binding.bind_cpu_input("last", np.array([end - 1], np.int32))
        binding.bind_cpu_input("total", np.array(end, np.int32))
        wanted = np.arange(num_rows - step.num_predicted, num_rows)
        binding.bind_cpu_input("wanted", wanted)
        binding.bind_output("logits")
        for (past, present), array in zip(self._cache_names, cache.arrays, strict=True):
            place = ("cpu", 0, np.float32, array.shape, array.ctypes.data)
            binding.bind_input(past, *place)
            binding.bind_output(present, *place)
        self._session.run_with_iobinding(binding)
        return reveal(binding.get_outputs()[0].numpy(), self._spec.mask_id)


def reveal(logits: NDArray[np.float32], mask_id: int) -> list[Prediction]:
    """The best token of each row but the mask, and its probability. logits: [rows, vocab]."""
    logits[:, mask_id] = -np.inf
    tokens = logits.argmax(axis=1)
    best = logits[np.arange(len(logits)), tokens]
    probabilities = 1 / np.exp(logits - best[:, None]).sum(axis=1)
    return [
        Prediction(int(token), float(probability))
        for token, probability in zip(tokens, probabilities, strict=True)
    ]
