"""What parallel commits are blamed for, found and named, so that it can be decoded anew. Pure.

Garbled seams ("Dieadona": fragments of two words committed in one forward), spans said twice, and
loops that never end. A guard names positions to mask again; a budget keeps it from insisting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from llm.engine.policy import BlockView, Ints


class Defect(Enum):
    """What is wrong with a block."""

    SEAM = "seam"
    REPEAT = "repeat"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect and the positions in the block that should be decoded anew, ascending."""

    defect: Defect
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GuardRule:
    """What counts as a defect.

    doubt: a token of a seam is garbled when the model now gives another one at least this
    probability. repeat_times: copies in a row of a span of at most repeat_length tokens that are
    too many. loop_times, loop_length: the text ends in a loop when its last loop_length tokens,
    or more, are loop_times rounds of something. budget: positions of a block masked again, at most.
    """

    doubt: float = 0.7
    repeat_times: int = 4
    repeat_length: int = 8
    loop_times: int = 3
    loop_length: int = 24
    budget: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.doubt <= 1:
            raise ValueError("doubt must be between 0 and 1")
        if min(self.repeat_times, self.loop_times) < 2:
            raise ValueError("a repetition takes two copies or more")
        if min(self.repeat_length, self.loop_length) < 1 or self.budget < 0:
            raise ValueError("lengths must be 1 or more, and the budget 0 or more")


def inspect(
    block: Ints, context: Sequence[int], forward: Ints, view: BlockView, rule: GuardRule
) -> list[Finding]:
    """All defects of a full block, seams first.

    block: int64 [n], its tokens. context: the tokens before it, or as many as matter.
    forward: int64 [n], which forward committed each position, negative for a position that is not
    ours to change. view: the model's next look at the full block, for at least the first n.
    """
    findings = [Finding(Defect.SEAM, garbled_seams(block, forward, view, rule.doubt))]
    findings += [
        Finding(Defect.REPEAT, positions)
        for positions in repeated_spans(block, rule.repeat_length, rule.repeat_times)
    ]
    text = [*context, *block.tolist()]
    first = len(text) - loop_tail(text, rule.loop_times, rule.loop_length) - len(context)
    findings.append(Finding(Defect.LOOP, tuple(range(max(0, first), len(block)))))
    ours = [
        Finding(found.defect, tuple(at for at in found.positions if forward[at] >= 0))
        for found in findings
    ]
    return [found for found in ours if found.positions]


def within_budget(findings: Sequence[Finding], budget: int) -> list[Finding]:
    """The findings that can still be acted on; a position is paid for once."""
    kept: list[Finding] = []
    paid: set[int] = set()
    for found in findings:
        new = [at for at in found.positions if at not in paid][: budget - len(paid)]
        if new:
            kept.append(Finding(found.defect, tuple(new)))
            paid.update(new)
    return kept


def garbled_seams(block: Ints, forward: Ints, view: BlockView, doubt: float) -> tuple[int, ...]:
    """Tokens that the model, seeing their neighbour, would now replace.

    Two neighbours committed by one forward were each chosen without sight of the other; their
    joint is improbable where the next look disagrees with one of them by `doubt` or more.
    """
    n = len(block)
    together = np.zeros(n, np.bool_)
    pairs = (forward[1:] == forward[:-1]) & (forward[1:] >= 0)
    together[1:] |= pairs
    together[:-1] |= pairs
    disagrees = (view.token[:n] != block) & (view.confidence[:n] >= doubt)
    return tuple(np.flatnonzero(together & disagrees).tolist())


def repeated_spans(block: Ints, max_length: int, times: int) -> list[tuple[int, ...]]:
    """Positions behind the first copy of every span that stands `times` times in a row, or more.

    The shortest span wins (aaaa is four times a, not twice aa), and runs do not overlap.
    """
    found: list[tuple[int, ...]] = []
    taken = np.zeros(len(block), np.bool_)
    for length in range(1, min(max_length, len(block) // times) + 1):
        equal = block[length:] == block[:-length]
        for first, last in _runs(equal):
            # A run of r equal pairs at distance `length` is a stretch of r + length tokens.
            stretch = last - first + length
            copies = stretch // length
            end = first + copies * length
            if copies >= times and not taken[first:end].any():
                taken[first:end] = True
                found.append(tuple(range(first + length, end)))
    return found


def loop_tail(text: Sequence[int], times: int, min_length: int) -> int:
    """How many tokens at the end of `text` say again what stands before them, 0 without a loop.

    The text ends in a loop when at least min_length of its last tokens are `times` rounds or more
    of one period; the first round is not counted as repetition.
    """
    tokens = np.array(text, np.int64)
    for period in range(1, len(tokens) // times + 1):
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        start = int(differs[-1]) + 1 if len(differs) else 0
        length = len(tokens) - start
        if length >= max(times * period, min_length):
            return length - period
    return 0


def _runs(flags: np.typing.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Start and end of every run of true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
