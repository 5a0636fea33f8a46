"""Efforts and budgets: an answer always has room, and more effort never buys less."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from llm.api.reasoning import DEFAULT, DEPTHS, MIN_ANSWER_TOKENS, Effort, share, summary

EFFORTS = get_args(Effort)


@given(st.integers(1, 100_000), st.sampled_from([None, *EFFORTS]), st.booleans())
def test_an_answer_always_has_room(max_tokens: int, effort: Effort | None, can_think: bool) -> None:
    budget = share(max_tokens, effort, can_think=can_think)
    assert budget.thinking >= 0
    assert budget.thinking + budget.answer == max_tokens
    assert budget.answer >= min(MIN_ANSWER_TOKENS, (max_tokens + 1) // 2)
    if not can_think:
        assert budget.thinking == 0


def test_every_effort_has_a_depth_and_they_grow() -> None:
    assert tuple(DEPTHS) == EFFORTS
    for less, more in pairwise(DEPTHS.values()):
        assert less.thinking_tokens <= more.thinking_tokens
        assert less.threshold <= more.threshold
        assert less.edit_passes <= more.edit_passes
    assert DEPTHS["instant"].thinking_tokens == 0


def test_the_default_is_an_effort_like_any_other() -> None:
    assert share(9000, None, can_think=True) == share(9000, DEFAULT, can_think=True)
    assert share(9000, None, can_think=True).thinking > 0


def test_a_summary_is_given_only_to_who_asks() -> None:
    assert summary(None) is None
    assert summary(wanted=False) is None
    assert summary(wanted=True) == {"content": None, "status": "unavailable"}
