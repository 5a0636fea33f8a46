"""Whether drafting pays: masks cost time in every forward and save forwards where drafts stand.

Learned from what was accepted lately, for all requests together, since it is a property of the
model more than of one text. Drafts never change the text, so neither does this.
"""

from __future__ import annotations

BREAK_EVEN = 0.25
"""Drafts accepted per forward that drafts: with masks a forward takes 1.2 to 1.3 times as long."""

PROBE_EVERY = 16
"""Without drafting, every so many forwards draft all the same, to notice that it would pay."""

MEMORY = 32
"""Drafting forwards over which acceptance is averaged."""


class DraftHabit:
    """Starts by drafting, and goes on while it pays."""

    def __init__(self) -> None:
        self._accepted = 1.0
        self._num_skipped = 0

    @property
    def pays(self) -> bool:
        """Whether drafts were accepted often enough lately."""
        return self._accepted >= BREAK_EVEN

    def num_masks(self, most: int) -> int:
        """Masks for the next forward: `most`, or none."""
        if self.pays or self._num_skipped >= PROBE_EVERY - 1:
            self._num_skipped = 0
            return most
        self._num_skipped += 1
        return 0

    def note(self, num_accepted: int) -> None:
        """A forward's masks drafted, and so many of the drafts were accepted by the next."""
        self._accepted += (num_accepted - self._accepted) / MEMORY
