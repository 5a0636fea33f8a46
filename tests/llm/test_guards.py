"""Each defect is provoked and found, and ordinary text is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.engine.guards import (
    Defect,
    Finding,
    GuardRule,
    garbled_seams,
    inspect,
    loop_tail,
    repeated_spans,
    within_budget,
)
from llm.engine.policy import BlockView

RULE = GuardRule()


def look(tokens: list[int], confidence: list[float] | None = None) -> BlockView:
    n = len(tokens)
    return BlockView(
        np.array(confidence or [1.0] * n), np.ones(n), np.zeros(n, bool), np.array(tokens)
    )


@pytest.mark.parametrize(
    ("forward", "now", "confidence", "expected"),
    [
        # "Die" and "adona" came together, and the model would now write another second half.
        ([3, 3, 4], [5, 9, 7], [0.9, 0.8, 0.9], (1,)),
        ([3, 3, 4], [9, 9, 7], [0.9, 0.8, 0.9], (0, 1)),
        ([3, 3, 4], [5, 9, 7], [0.9, 0.6, 0.9], ()),
        ([3, 3, 4], [5, 6, 9], [0.9, 0.9, 0.9], ()),
        ([3, 4, 3], [9, 9, 9], [0.9, 0.9, 0.9], ()),
        ([-1, -1, 4], [9, 9, 7], [0.9, 0.9, 0.9], ()),
    ],
)
def test_a_seam_is_two_neighbours_of_one_forward_that_the_model_takes_back(
    forward: list[int], now: list[int], confidence: list[float], expected: tuple[int, ...]
) -> None:
    block = np.array([5, 6, 7])
    assert garbled_seams(block, np.array(forward), look(now, confidence), 0.7) == expected


@pytest.mark.parametrize(
    ("block", "times", "expected"),
    [
        ([5, 5, 5, 6], 3, [(1, 2)]),
        ([5, 5, 6, 6], 3, []),
        ([1, 5, 6, 5, 6, 5, 6, 7], 3, [(3, 4, 5, 6)]),
        ([1, 5, 6, 5, 6, 5, 7], 3, []),
        ([5, 6, 5, 6, 5, 6, 5], 3, [(2, 3, 4, 5)]),
        ([5, 5, 5, 5], 2, [(1, 2, 3)]),
        ([5, 5, 5, 9, 6, 7, 6, 7, 6, 7], 3, [(1, 2), (6, 7, 8, 9)]),
        ([], 2, []),
    ],
)
def test_copies_behind_the_first_are_named(
    block: list[int], times: int, expected: list[tuple[int, ...]]
) -> None:
    assert repeated_spans(np.array(block, int), 8, times) == expected


@given(
    before=st.lists(st.integers(0, 9), max_size=6),
    span=st.lists(st.integers(10, 99), min_size=1, max_size=5, unique=True),
    times=st.integers(2, 5),
    after=st.lists(st.integers(100, 109), max_size=6),
)
def test_a_planted_repetition_is_found_and_no_longer_there_without_its_copies(
    before: list[int], span: list[int], times: int, after: list[int]
) -> None:
    block = np.array([*before, *span * times, *after])
    found = repeated_spans(block, 5, times)
    planted = tuple(range(len(before) + len(span), len(before) + len(span) * times))
    assert planted in found
    assert planted not in repeated_spans(block, 5, times + 1)
    named = {at for positions in found for at in positions}
    rest = [token for at, token in enumerate(block.tolist()) if at not in named]
    assert [token for token in rest if 10 <= token < 100] == span


@pytest.mark.parametrize(
    ("text", "times", "min_length", "expected"),
    [
        ([1, 2, 5, 6, 7, 5, 6, 7, 5, 6, 7], 3, 9, 6),
        ([1, 2, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5], 3, 9, 7),
        ([1, 2, 5, 6, 7, 5, 6, 7, 5, 6], 3, 9, 0),
        ([5, 6, 7, 5, 6, 7, 5, 6, 7, 8], 3, 9, 0),
        ([1, 2, 3, 4, 5, 6, 7, 5, 6, 7], 3, 4, 0),
        ([8, 5, 5, 5], 3, 4, 0),
        ([8, 5, 5, 5, 5], 3, 4, 3),
        ([5, 5, 5, 5], 2, 4, 3),
        ([], 3, 4, 0),
    ],
)
def test_a_loop_is_a_tail_that_goes_round(
    text: list[int], times: int, min_length: int, expected: int
) -> None:
    assert loop_tail(text, times, min_length) == expected


def test_a_loop_may_begin_before_the_block() -> None:
    sentence = list(range(10, 20))
    text = [1, 2, *sentence * 3]
    context, block = text[:24], text[24:]
    found = inspect(np.array(block), context, np.arange(8), look(block), RULE)
    assert found == [Finding(Defect.LOOP, tuple(range(8)))]
    assert inspect(np.array(block), context[4:], np.arange(8), look(block), RULE) == []


def test_ordinary_text_has_no_defects() -> None:
    block = [5, 6, 7, 5, 6, 8, 5, 5, 9, 10, 11, 12]
    forward = np.zeros(12, int)
    assert inspect(np.array(block), [5, 6, 7, 8], forward, look(block), RULE) == []


def test_the_prompt_is_never_named() -> None:
    block = [5] * 6
    forward = np.array([-1, -1, -1, 2, 2, 2])
    found = inspect(np.array(block), [], forward, look([9] * 6), RULE)
    assert found == [Finding(Defect.SEAM, (3, 4, 5)), Finding(Defect.REPEAT, (3, 4, 5))]
    assert inspect(np.array(block), [], np.full(6, -1), look([9] * 6), RULE) == []


def test_a_position_is_paid_for_once_and_the_budget_holds() -> None:
    seam = Finding(Defect.SEAM, (1, 2))
    repeat = Finding(Defect.REPEAT, (2, 3, 4))
    loop = Finding(Defect.LOOP, (2,))
    assert within_budget([seam, repeat, loop], 4) == [seam, Finding(Defect.REPEAT, (3, 4))]
    assert within_budget([seam, repeat], 3) == [seam, Finding(Defect.REPEAT, (3,))]
    assert within_budget([seam], 0) == []


@pytest.mark.parametrize(
    "bad",
    [{"doubt": 1.5}, {"repeat_times": 1}, {"loop_times": 1}, {"loop_length": 0}, {"budget": -1}],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|takes two"):
        GuardRule(**bad)  # type: ignore[arg-type]
