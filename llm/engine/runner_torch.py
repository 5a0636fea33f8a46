"""Forwards in torch: the reference that the other runners are tested against.

In: steps of canvases with their slots. Out: logits of the rows that are wanted. Knows nothing of
requests, drafts or text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from llm.engine.canvas import DraftStep, Prediction, Step
from llm.engine.runner import Pages
from llm.models.transformer import KVCache, Transformer


class TorchRunner:
    """Runs a transformer for the engine, one step after the other."""

    num_drafts = 0

    def __init__(self, model: Transformer, context_length: int, num_slots: int = 1) -> None:
        self._model = model
        self.context_length = context_length
        self.num_slots = num_slots
        self._caches: dict[int, KVCache] = {}

    def open(self, slot: int, num_positions: int) -> None:
        """Make room for a sequence of so many positions in the slot."""
        self._caches[slot] = self._model.open_cache(num_positions)

    def close(self, slot: int) -> None:
        """Give the slot's memory back."""
        del self._caches[slot]

    @torch.inference_mode()
    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        """One forward for each (slot, step)."""
        return [self._run(self._caches[slot], step) for slot, step in steps]

    def draft(self, steps: Sequence[tuple[int, DraftStep]]) -> list[list[Prediction]]:
        """Nothing drafts here but masks."""
        raise AssertionError(f"this runner has no drafter for {len(steps)} steps")

    def read_pages(self, slot: int, start: int, end: int) -> Pages:
        """A copy of the keys and values of positions [start, end)."""
        values = self._caches[slot].values[:, :, :, start:end]
        return values.flatten(0, 1).numpy().copy()

    def write_pages(self, slot: int, start: int, pages: Pages) -> None:
        """Put keys and values from `read_pages` back."""
        cache = self._caches[slot].values
        end = start + pages.shape[2]
        cache[:, :, :, start:end] = torch.from_numpy(pages).view_as(cache[:, :, :, start:end])

    def _run(self, cache: KVCache, step: Step) -> NDArray[np.float32]:
        tokens, visible = torch.tensor(step.tokens), torch.tensor(step.visible)
        hidden = self._model.forward(tokens, step.start, visible, cache)
        logits: NDArray[np.float32] = self._model.logits(hidden[list(step.wanted)]).numpy()
        return logits
