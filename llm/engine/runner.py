"""What the engine asks of whatever runs forwards: torch on the CPU now, others behind it later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llm.engine.canvas import Prediction, Step


class Runner(Protocol):
    """Runs forwards over sequences whose caches it owns.

    A row's result must not depend, to the last bit, on the rows and sequences beside it.
    """

    @property
    def context_length(self) -> int:
        """Positions that a sequence may have at most."""

    def open_cache(self, capacity: int) -> Any:
        """A cache for one sequence of at most `capacity` positions, handed back to `forward`."""

    def forward(self, steps: Sequence[tuple[Any, Step]]) -> list[list[Prediction]]:
        """One forward for each (cache, step); returns the predictions that each step asks for."""
