"""From a model folder to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.engine import Engine
from llm.engine.runner_onnx import OnnxRunner
from llm.models.built import load_built
from llm.models.checkpoint import TokenizerData
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer

MASK_TOKEN = "<empty_output>"
"""SmolLM2 has no mask token; this control token never occurs in its chats."""


def spec_for(data: TokenizerData, tokenizer: Tokenizer) -> DiffusionSpec:
    """How SmolLM2 decodes: verified drafts behind causal clean text."""
    return DiffusionSpec(
        mask_id=tokenizer.id_of(MASK_TOKEN),
        eos_ids=frozenset({data.eos_id, tokenizer.id_of("<|endoftext|>")}),
    )


def load_engine(
    folder: Path, config: EngineConfig, on_build: Callable[[str], None] = lambda _: None
) -> Engine:
    """Load the model in `folder` (model.gguf) and start its engine.

    on_build is called with a line for the user where the model is first made ready for this
    machine, which takes some seconds. Raises CheckpointError where the model cannot be used.
    """
    model = load_built(folder, on_build)
    tokenizer = Tokenizer(model.tokenizer)
    spec = spec_for(model.tokenizer, tokenizer)
    runner = OnnxRunner(
        model,
        config.max_context_tokens + 2 * config.num_draft_tokens,
        config.num_slots,
        config.num_threads,
    )
    template = ChatTemplate(model.tokenizer.chat_template)
    return Engine(runner, spec, tokenizer, template, config)
