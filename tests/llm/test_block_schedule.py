"""The first block is short; reserve makes blocks longer; the caller's limit holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.engine.block_schedule import block_length


@pytest.mark.parametrize(
    ("num_committed", "buffered_ms", "expected"),
    [
        (0, None, 4), (3, None, 4), (8, None, 8), (15, None, 8), (16, None, 16), (99, None, 32),
        (99, 0.0, 4), (0, 499.0, 4), (0, 500.0, 8), (0, 1200.0, 16), (0, 9000.0, 32),
    ],
)  # fmt: skip
def test_lengths(num_committed: int, buffered_ms: float | None, expected: int) -> None:
    assert (
        block_length(num_committed=num_committed, buffered_ms=buffered_ms, largest=32) == expected
    )


@given(st.integers(0, 99), st.none() | st.floats(0, 9e4), st.integers(1, 64))
def test_never_longer_than_allowed(
    num_committed: int, buffered_ms: float | None, largest: int
) -> None:
    length = block_length(num_committed=num_committed, buffered_ms=buffered_ms, largest=largest)
    assert 1 <= length <= largest
