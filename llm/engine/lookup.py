"""Drafts copied from the text itself: what followed the same tokens before may follow again.

Free to make, and right where an answer repeats what it was told: names, prices, whole phrases of
a dictation (prompt lookup decoding). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH = 4
SHORTEST_MATCH = 2
"""One token alone was followed by too many others."""


def copied(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """What followed the last tokens where they stood before, at most `most` tokens.

    The longest match wins, among equals the latest; none where the last two never stood before.
    """
    for length in range(min(LONGEST_MATCH, len(tokens) - 1), SHORTEST_MATCH - 1, -1):
        end = list(tokens[-length:])
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start] == end[0] and list(tokens[start : start + length]) == end:
                return tuple(tokens[start + length : start + length + most])
    return ()
