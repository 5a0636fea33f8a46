"""Decoding policies: which masks of a block are revealed after a forward.

Pure: a view of the block in, flags out. Every policy reveals at least one masked position and
never another one; of equals the leftmost comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockView:
    """What a forward says of a block, one entry for each of its n positions.

    confidence: float64 [n], probability of the best token, 0 to 1. entropy: float64 [n], nats.
    masked: bool [n], may be revealed now. token: int64 [n], the best token.
    """

    confidence: Floats
    entropy: Floats
    masked: Flags
    token: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What policies keep of a block's earlier steps; handed in and out.

    num_masked: masks when the block began. step: forwards since then. token, credit: int64 and
    float64 [n], the latest best token of each position and the evidence gathered for it.
    """

    num_masked: int
    step: int
    token: Ints
    credit: Floats

    @classmethod
    def fresh(cls, masked: Flags) -> Memory:
        """The memory of a block that has seen no forward. masked: bool [n]."""
        return cls(int(masked.sum()), 0, np.full(len(masked), -1), np.zeros(len(masked)))


class Policy(Protocol):
    """A rule that reveals."""

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """Positions to reveal, bool [n], and the memory for the next step."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """All masks whose best token is at least this probable (Fast-dLLM, arXiv 2505.22618, 3.3)."""

    threshold: float = 0.9

    def __post_init__(self) -> None:
        _require(0 < self.threshold <= 1, "threshold must be above 0 and at most 1")

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """See Policy."""
        return _with_best(view.confidence >= self.threshold, view), _next(memory)


@dataclass(frozen=True, slots=True)
class Factor:
    """The n most confident masks, for the largest n with (n + 1)(1 - n-th confidence) < factor.

    More tokens at once need more confidence (Fast-dLLM, arXiv 2505.22618, section 3.3).
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _require(self.factor > 0, "factor must be above 0")

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """See Policy."""
        order = _ranked(-view.confidence, view.masked)
        rank = np.arange(1, len(order) + 1)
        fits = (rank + 1) * (1 - view.confidence[order]) < self.factor
        return _first(order, int(rank[fits].max(initial=1)), view), _next(memory)


@dataclass(frozen=True, slots=True)
class EntropyBound:
    """The masks of lowest entropy, while their entropies sum to at most `bound` nats.

    EB-Sampler, arXiv 2505.24857; the sum bounds how much the tokens can depend on each other.
    """

    bound: float = 0.15

    def __post_init__(self) -> None:
        _require(self.bound >= 0, "bound must be 0 or more")

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """See Policy."""
        order = _ranked(view.entropy, view.masked)
        num_fit = int((np.cumsum(view.entropy[order]) <= self.bound).sum())
        return _first(order, max(1, num_fit), view), _next(memory)


@dataclass(frozen=True, slots=True)
class Credit:
    """As Threshold, but a token that stays the best for many steps gains confidence.

    Each step credit fades by `decay` and grows by confidence ** sharpness; the token's odds are
    multiplied by (1 + credit) ** weight. dInfer (arXiv 2510.08666, credit decoding) keeps credit
    for the whole vocabulary; here only for the best token, anew when another one takes its place.
    """

    threshold: float = 0.9
    weight: float = 0.7
    decay: float = 0.8
    sharpness: float = 0.2

    def __post_init__(self) -> None:
        _require(0 < self.threshold <= 1, "threshold must be above 0 and at most 1")
        _require(0 <= self.decay <= 1, "decay must be between 0 and 1")
        _require(self.weight >= 0 and self.sharpness >= 0, "weight and sharpness must be 0 or more")

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """See Policy."""
        kept = np.where(view.token == memory.token, memory.credit * self.decay, 0.0)
        credit = np.where(view.masked, kept + view.confidence**self.sharpness, 0.0)
        odds = view.confidence * (1 + credit) ** self.weight
        confidence = odds / (odds + 1 - view.confidence)
        raised = BlockView(confidence, view.entropy, view.masked, view.token)
        token = np.where(view.masked, view.token, -1)
        step = Memory(memory.num_masked, memory.step + 1, token, credit)
        return _with_best(confidence >= self.threshold, raised), step


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Divide and conquer: the best mask of each run of masks, if it reaches low_threshold.

    So far-apart positions come first and each splits its run; masks that reach threshold come
    in any case (dInfer, arXiv 2510.08666, hierarchical decoding).
    """

    threshold: float = 0.9
    low_threshold: float = 0.6

    def __post_init__(self) -> None:
        _require(
            0 <= self.low_threshold <= self.threshold <= 1,
            "thresholds must be 0 <= low_threshold <= threshold <= 1",
        )

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """See Policy."""
        chosen = view.confidence >= self.threshold
        masked = np.flatnonzero(view.masked)
        for run in np.split(masked, np.flatnonzero(np.diff(masked) > 1) + 1):
            best = run[np.argmax(view.confidence[run])]
            chosen[best] |= view.confidence[best] >= self.low_threshold
        return _with_best(chosen, view), _next(memory)


@dataclass(frozen=True, slots=True)
class FixedSteps:
    """The same number of masks in each of num_steps forwards, the most confident first.

    What does not divide goes one each to the first steps (LLaDA, arXiv 2502.09992, low-confidence
    remasking). With as many steps as masks, or more, one mask a step.
    """

    num_steps: int

    def __post_init__(self) -> None:
        _require(self.num_steps >= 1, "num_steps must be 1 or more")

    def choose(self, view: BlockView, memory: Memory) -> tuple[Flags, Memory]:
        """See Policy."""
        each, remainder = divmod(memory.num_masked, self.num_steps)
        count = each + (memory.step < remainder)
        order = _ranked(-view.confidence, view.masked)
        return _first(order, max(1, count), view), _next(memory)


def _ranked(key: Floats, masked: Flags) -> Ints:
    """The masked positions by ascending key, the leftmost of equals first."""
    positions = np.flatnonzero(masked)
    return positions[np.argsort(key[positions], kind="stable")]


def _first(order: Ints, count: int, view: BlockView) -> Flags:
    assert len(order), "there is nothing left to reveal"
    chosen = np.zeros(len(view.masked), np.bool_)
    chosen[order[:count]] = True
    return chosen


def _with_best(chosen: Flags, view: BlockView) -> Flags:
    return (chosen & view.masked) | _first(_ranked(-view.confidence, view.masked), 1, view)


def _next(memory: Memory) -> Memory:
    return Memory(memory.num_masked, memory.step + 1, memory.token, memory.credit)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
