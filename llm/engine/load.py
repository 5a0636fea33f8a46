"""From a model folder to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.engine import Engine, masks_behind
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
    folder: Path, config: EngineConfig, on_notice: Callable[[str], None] = lambda _: None
) -> Engine:
    """Load the model in `folder` and start its engine.

    folder: a GGUF named model.gguf, or a Hugging Face folder with config.json and safetensors.
    on_notice: called with a line for the user where the model is first made ready for this
    machine, which takes some seconds, and where it seems to be read wrongly. Raises
    CheckpointError where the model cannot be used.
    """
    if (folder / "config.json").is_file():
        return _load_folder(folder, config, on_notice)
    model = load_built(folder, on_notice)
    tokenizer = Tokenizer(model.tokenizer)
    spec = spec_for(model.tokenizer, tokenizer)
    positions = config.max_context_tokens + masks_behind(spec, config)
    runner = OnnxRunner(model, positions, config.num_slots, config.num_threads)
    template = ChatTemplate(model.tokenizer.chat_template)
    return Engine(runner, spec, tokenizer, template, config)


def _load_folder(folder: Path, config: EngineConfig, on_notice: Callable[[str], None]) -> Engine:
    # Torch takes two seconds to import and is needed for these models only.
    import torch  # noqa: PLC0415

    from llm.engine.runner_torch import TorchRunner  # noqa: PLC0415
    from llm.models.folder import load_folder  # noqa: PLC0415
    from llm.models.self_check import self_check  # noqa: PLC0415

    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    model = load_folder(folder, torch.float32)
    if (warning := self_check(model).warning) is not None:
        on_notice(f"{folder.name}: {warning}")
    positions = config.max_context_tokens + masks_behind(model.spec, config)
    limit = model.backbone.config.context_length
    runner = TorchRunner(model.backbone, min(positions, limit), config.num_slots)
    template = ChatTemplate(model.chat_template)
    return Engine(runner, model.spec, model.tokenizer, template, config)
