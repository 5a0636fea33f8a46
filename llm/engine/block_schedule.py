"""How long the next block is: short until something is heard, longer as playout has a reserve.

A short first block brings the first words out soonest; once audio is buffered, longer blocks draft
more in each forward. Plain arithmetic; the caller says how much audio is buffered.
"""

from __future__ import annotations

BLOCKS = (4, 8, 16, 32)
"""Block lengths in tokens."""

BUFFERED_MS_FOR_LONGER = 500.0
"""Reserve of audio that buys each next longer block."""


def block_length(*, num_committed: int, buffered_ms: float | None, largest: int) -> int:
    """Tokens of the next block, one of BLOCKS or `largest` if that is shorter.

    num_committed: tokens of the answer so far. buffered_ms: audio that is ready but not yet
    heard; None where nobody listens, and then each block is as long as what is committed allows.
    """
    if buffered_ms is None:
        fitting = [block for block in BLOCKS if block <= max(BLOCKS[0], num_committed)]
        chosen = fitting[-1]
    else:
        chosen = BLOCKS[min(int(buffered_ms // BUFFERED_MS_FOR_LONGER), len(BLOCKS) - 1)]
    return max(1, min(chosen, largest))
