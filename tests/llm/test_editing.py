"""Edits: what is replaced, what is not, and that they end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.engine.editing import EditMemory, EditRule, choose_edits, low_confidence_spans
from llm.engine.policy import BlockView


def look(pairs: list[tuple[int, float]]) -> BlockView:
    token, confidence = (np.array(column) for column in zip(*pairs, strict=True))
    n = len(pairs)
    return BlockView(confidence, np.ones(n), np.zeros(n, bool), token)


def edits(
    tokens: list[int],
    pairs: list[tuple[int, float]],
    rule: EditRule,
    memory: EditMemory | None = None,
    editable: list[bool] | None = None,
) -> list[int]:
    allowed = np.array(editable or [True] * len(tokens))
    memory = memory or EditMemory()
    chosen, _ = choose_edits(np.array(tokens), allowed, look(pairs), rule, memory)
    return np.flatnonzero(chosen).tolist()


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(7, 0.9), (8, 0.9), (9, 0.9)], []),
        ([(1, 0.9), (8, 0.9), (2, 0.5)], [0, 2]),
        ([(1, 0.49), (8, 0.9), (2, 0.4)], []),
    ],
)
def test_a_confident_other_token_takes_the_place(
    pairs: list[tuple[int, float]], expected: list[int]
) -> None:
    assert edits([7, 8, 9], pairs, EditRule(0.5)) == expected


def test_only_what_an_earlier_forward_revealed_is_editable() -> None:
    pairs = [(1, 0.9), (2, 0.9)]
    assert edits([7, 8], pairs, EditRule(0.5), editable=[False, True]) == [1]


def test_the_budget_goes_to_the_most_probable_the_leftmost_of_equals() -> None:
    pairs = [(1, 0.6), (2, 0.9), (3, 0.6)]
    assert edits([7, 8, 9], pairs, EditRule(0.5, budget=2)) == [0, 1]
    spent = EditMemory(num_edited=1)
    assert edits([7, 8, 9], pairs, EditRule(0.5, budget=2), spent) == [1]
    assert edits([7, 8, 9], pairs, EditRule(0.5, budget=1), spent) == []


def test_a_state_seen_before_is_not_entered_again() -> None:
    pairs = [(1, 0.9), (2, 0.6)]
    seen = EditMemory(frozenset({(1, 2)}))
    assert edits([7, 8], pairs, EditRule(0.5), seen) == [0], "the least probable edit is given up"
    seen = EditMemory(frozenset({(1, 2), (1, 8)}))
    assert edits([7, 8], pairs, EditRule(0.5), seen) == []


@given(
    looks=st.lists(
        st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from([0.3, 0.6, 0.9])), min_size=4, max_size=4
        ),
        min_size=1,
        max_size=30,
    ),
    budget=st.integers(0, 40),
)
def test_edits_never_run_in_circles_nor_over_the_budget(
    looks: list[list[tuple[int, float]]], budget: int
) -> None:
    tokens, memory = np.array([1, 1, 1, 1]), EditMemory()
    states: list[tuple[int, ...]] = []
    total = 0
    for pairs in looks:
        view = look(pairs)
        chosen, memory = choose_edits(tokens, np.ones(4, bool), view, EditRule(0.5, budget), memory)
        assert (view.token[chosen] != tokens[chosen]).all()
        assert (view.confidence[chosen] >= 0.5).all()
        tokens = np.where(chosen, view.token, tokens)
        state = tuple(tokens.tolist())
        if chosen.any():
            assert state not in states
        states.append(state)
        total += int(chosen.sum())
    assert total == memory.num_edited <= budget


def test_doubtful_reveals_take_their_neighbours_along() -> None:
    confidence = np.array([0.9, 0.9, 0.4, 0.9, 0.9, 0.9, 0.3])
    ours = np.array([True] * 7)
    assert np.flatnonzero(low_confidence_spans(confidence, ours, 0.5)).tolist() == [1, 2, 3, 5, 6]
    ours[1] = False
    assert np.flatnonzero(low_confidence_spans(confidence, ours, 0.5)).tolist() == [2, 3, 5, 6]
    assert not low_confidence_spans(confidence, ours, 0.0).any()
    ours[2] = False
    assert np.flatnonzero(low_confidence_spans(confidence, ours, 0.5)).tolist() == [5, 6]


@pytest.mark.parametrize("bad", [{"threshold": 1.1}, {"remask_below": -0.1}, {"budget": -1}])
def test_settings_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        EditRule(**bad)  # type: ignore[arg-type]
