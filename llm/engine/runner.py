"""What the engine asks of whatever runs forwards: ONNX Runtime by default, torch as reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llm.engine.canvas import DraftStep, Prediction, Step

Pages = NDArray[np.float32]
"""Keys and values of some positions, [layers x 2, kv_heads, positions, head_size]."""


class Runner(Protocol):
    """Runs forwards over slots, each of which holds the cache of one sequence.

    A row's result does not depend, to the last bit, on the rows and sequences beside it.
    """

    @property
    def context_length(self) -> int:
        """Positions that a slot has."""

    @property
    def num_slots(self) -> int:
        """Sequences that can be held at once."""

    @property
    def num_drafts(self) -> int:
        """Tokens that the model's drafter drafts at once; 0 where it has none."""

    def open(self, slot: int, num_positions: int) -> None:
        """Make room for a sequence of so many positions in the slot."""

    def close(self, slot: int) -> None:
        """Give the slot's memory back."""

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        """One forward for each (slot, step), each slot once; all in one go where that pays.

        Returns for each the logits of the rows that it wants, float32 [wanted, vocab], which the
        caller may overwrite.
        """

    def draft(self, steps: Sequence[tuple[int, DraftStep]]) -> list[list[Prediction]]:
        """Let the drafter read what the last forward made of each (slot, step), and draft."""

    def read_pages(self, slot: int, start: int, end: int) -> Pages:
        """A copy of the keys and values of positions [start, end)."""

    def write_pages(self, slot: int, start: int, pages: Pages) -> None:
        """Put keys and values from `read_pages` back at position `start` and behind."""
