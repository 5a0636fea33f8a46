"""Random adapters for the tiny checkpoint: a low-rank correction, a drafter, a template."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm.models.adapted import DRAFT, SPEAK, TEMPLATE, drafter_metadata, save_adapter
from llm.models.spec import DrafterConfig
from tests.llm import tiny

RANK = 3
QKV = (tiny.HEADS + 2 * tiny.KV_HEADS) * tiny.HEAD
SHAPES = {
    "qkv": (QKV, tiny.HIDDEN),
    "output": (tiny.HIDDEN, tiny.HEADS * tiny.HEAD),
    "gate_up": (2 * tiny.INNER, tiny.HIDDEN),
    "down": (tiny.HIDDEN, tiny.INNER),
}
CONFIG = DrafterConfig(num_layers=1, depths=(1, 2), num_drafts=4, token_ids=tuple(range(4, 260, 2)))


def write_tiny_adapted(folder: Path, *, seed: int = 0, drafter: bool = True) -> Path:
    """A folder with the tiny checkpoint and adapters."""
    tiny.write_tiny_gguf(folder / "model.gguf", seed=seed)
    rng = np.random.default_rng(seed)
    save_adapter(folder / SPEAK, speak_tensors(rng), {})
    (folder / TEMPLATE).write_text("adapted " + tiny.TEMPLATE, "utf-8")
    if drafter:
        save_adapter(folder / DRAFT, draft_tensors(rng), drafter_metadata(CONFIG))
    return folder


def speak_tensors(rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    return {
        f"layers.{layer}.{part}.{side}": rng.normal(0, 0.2, shape).astype(np.float32)
        for layer in range(tiny.LAYERS)
        for part, (rows, columns) in SHAPES.items()
        for side, shape in (("a", (RANK, columns)), ("b", (rows, RANK)))
    }


def draft_tensors(rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    size = tiny.HIDDEN
    shapes = {
        "features.weight": (size, len(CONFIG.depths) * size),
        "next.weight": (size, size),
        "masks": (CONFIG.num_drafts - 1, size),
    }
    shapes |= {f"layers.0.{part}.weight": shape for part, shape in SHAPES.items()}
    return {
        name: rng.normal(0, 2 / np.sqrt(shape[1]), shape).astype(np.float32)
        for name, shape in shapes.items()
    }
