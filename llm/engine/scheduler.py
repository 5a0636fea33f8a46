"""Who runs next, and how much of a long prompt one step takes; plain decisions.

In: what waits and what runs. Out: what to admit, and how many rows each sequence may compute now.
Knows nothing of threads, time or tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from llm.types import Priority

VOICE_IN_A_ROW = 4
"""Voice requests admitted before a waiting text request gets its turn."""

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Requests that wait for a slot: voice first, but text is never left standing."""

    def __init__(self) -> None:
        self._lines: dict[Priority, deque[T]] = {priority: deque() for priority in Priority}
        self._voice_in_a_row = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, item: T, priority: Priority) -> None:
        """Put an item at the end of its line."""
        self._lines[priority].append(item)

    def next(self) -> T:
        """Take out who is next; there must be one."""
        voice, text = self._lines[Priority.VOICE], self._lines[Priority.TEXT]
        if voice and not (text and self._voice_in_a_row >= VOICE_IN_A_ROW):
            self._voice_in_a_row += 1
            return voice.popleft()
        self._voice_in_a_row = 0
        return text.popleft()

    def drain(self) -> list[T]:
        """Take out everything."""
        items = [item for line in self._lines.values() for item in line]
        for line in self._lines.values():
            line.clear()
        return items


def share_rows(
    todo: Sequence[int],
    priorities: Sequence[Priority],
    *,
    budget: int,
    smallest: int,
    divisible: bool = True,
) -> list[int]:
    """How many clean rows each sequence may compute in this step.

    todo: rows that each still has to compute before it can predict, 1 or more. budget: rows for
    long prompts together; who needs up to `smallest` rows is decoding and always gets them. Long
    prompts are served voice first, then in order; 0 means to wait for a later step. At least one
    long prompt goes on in every step. divisible: a long prompt may be computed in parts, else it
    waits until all of it fits, or alone exceeds the budget.
    """
    shares = [rows if rows <= smallest else 0 for rows in todo]
    long = [index for index, rows in enumerate(todo) if rows > smallest]
    for index in sorted(long, key=lambda i: priorities[i] is not Priority.VOICE):
        is_first = not any(shares[other] for other in long)
        if divisible:
            shares[index] = min(todo[index], budget)
        elif is_first or todo[index] <= budget:
            shares[index] = todo[index]
        budget -= shares[index]
        if budget < smallest:
            break
    return shares
