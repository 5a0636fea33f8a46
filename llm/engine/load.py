"""From a model folder to a running engine."""

from __future__ import annotations

from pathlib import Path

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.engine import Engine
from llm.engine.runner_torch import TorchRunner
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.models.transformer import Transformer
from llm.tokenizer import Tokenizer

MASK_TOKEN = "<empty_output>"
"""SmolLM2 has no mask token; this control token never occurs in its chats."""


def load_engine(folder: Path, config: EngineConfig) -> Engine:
    """Load the model in `folder` (model.gguf) and start its engine.

    Raises CheckpointError where the file cannot be used.
    """
    file = GgufFile(folder / "model.gguf")
    tokenizer = Tokenizer(file.tokenizer)
    spec = DiffusionSpec(
        mask_id=tokenizer.id_of(MASK_TOKEN),
        eos_ids=frozenset({file.tokenizer.eos_id, tokenizer.id_of("<|endoftext|>")}),
    )
    runner = TorchRunner(Transformer(file), spec, config.num_threads)
    return Engine(runner, spec, tokenizer, ChatTemplate(file.tokenizer.chat_template), config)
