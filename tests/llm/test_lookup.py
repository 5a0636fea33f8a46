"""Copied drafts: always something that the text has, behind what it ends with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.engine.lookup import LONGEST_MATCH, SHORTEST_MATCH, copied


@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2], 2, (3, 4)),
        ([1, 2, 3, 1, 2, 4, 1, 2], 1, (4,)),
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1, (3,)),
        ([1, 2, 3, 9, 2], 3, ()),
        ([5, 5, 5], 4, (5,)),
        ([1], 4, ()),
        ([], 4, ()),
    ],
)
def test_examples(tokens: list[int], most: int, expected: tuple[int, ...]) -> None:
    assert copied(tokens, most) == expected


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 6))
def test_no_longer_match_exists(tokens: list[int], most: int) -> None:
    """Against all places, tried one by one."""
    best: tuple[int, int] | None = None
    for end in range(1, len(tokens)):
        length = 0
        while length < min(end, LONGEST_MATCH) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= SHORTEST_MATCH and (best is None or (length, end) >= best):
            best = (length, end)
    expected = () if best is None else tuple(tokens[best[1] : best[1] + most])
    assert copied(tokens, most) == expected
