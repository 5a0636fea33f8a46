"""Second thoughts about a block: revealed tokens replaced, or masked again. Pure.

Token-to-token editing after LLaDA2.1 (arXiv 2602.08676): a revealed token gives way to another
that the model now finds probable. Re-masking: what was revealed with doubt is decoded once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm.engine.policy import BlockView, Flags, Floats, Ints


@dataclass(frozen=True, slots=True)
class EditRule:
    """When a revealed token is replaced.

    threshold: the new token is at least this probable, 0 to 1. budget: replacements in a block at
    most. remask_below: tokens revealed with less confidence than this are masked again once, with
    their neighbours, when the block is full; 0 = never.
    """

    threshold: float = 0.5
    budget: int = 16
    remask_below: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.threshold <= 1 and 0 <= self.remask_below <= 1 and self.budget >= 0):
            raise ValueError("thresholds must be between 0 and 1, and the budget 0 or more")


@dataclass(frozen=True, slots=True)
class EditMemory:
    """What editing keeps of a block: the states it was in, and the replacements made."""

    seen: frozenset[tuple[int, ...]] = frozenset()
    num_edited: int = 0


def choose_edits(
    tokens: Ints, editable: Flags, view: BlockView, rule: EditRule, memory: EditMemory
) -> tuple[Flags, EditMemory]:
    """Positions whose token is replaced by the view's.

    tokens: int64 [n], the block as it stands after this forward's reveals. editable: bool [n],
    revealed by an earlier forward. Returns bool [n] and the memory of the block as it then is. The
    most probable edits come first, the leftmost of equals; the least probable are given up while
    the block would return to a state that it was in before, so that edits cannot run in circles.
    """
    wanted = editable & (view.token != tokens) & (view.confidence >= rule.threshold)
    positions = np.flatnonzero(wanted)
    best_first = positions[np.argsort(-view.confidence[positions], kind="stable")]
    count = min(len(best_first), rule.budget - memory.num_edited)
    while count and _edited(tokens, view, best_first[:count]) in memory.seen:
        count -= 1
    chosen = np.zeros(len(tokens), np.bool_)
    chosen[best_first[:count]] = True
    state = _edited(tokens, view, best_first[:count])
    return chosen, EditMemory(memory.seen | {state}, memory.num_edited + count)


def low_confidence_spans(confidence: Floats, editable: Flags, threshold: float) -> Flags:
    """Positions to mask again: revealed with less than `threshold`, and one neighbour each side.

    confidence: float64 [n], the probability with which each position was revealed. editable:
    bool [n]. What a model reveals with doubt next to other reveals is where halves of different
    sentences meet; its own second look confirms nearly all of it, so the first doubt must count.
    """
    doubtful = editable & (confidence < threshold)
    spans = doubtful.copy()
    spans[1:] |= doubtful[:-1]
    spans[:-1] |= doubtful[1:]
    return spans & editable


def _edited(tokens: Ints, view: BlockView, positions: Ints) -> tuple[int, ...]:
    edited = tokens.copy()
    edited[positions] = view.token[positions]
    return tuple(edited.tolist())
