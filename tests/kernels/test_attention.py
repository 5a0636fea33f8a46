"""Block attention against a plain loop, and its independence of the rows beside it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import KEYS_PER_PAGE, block_attention, visibility_bias


def plain_attention(q, k, v, visible):
    """One query head at a time in float64."""
    rows, num_heads, size = q.shape
    group = num_heads // k.shape[0]
    out = torch.empty(rows, num_heads, size, dtype=torch.float64)
    for row in range(rows):
        for head in range(num_heads):
            keys = k[head // group, : visible[row]].double()
            values = v[head // group, : visible[row]].double()
            weights = torch.softmax(keys @ q[row, head].double() / math.sqrt(size), dim=0)
            out[row, head] = weights @ values
    return out


def run(q, k, v, visible):
    return block_attention(q, k, v, visibility_bias(visible, q.shape[1] // k.shape[0]))


def sample(rows: int, pages: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, 3, pages * KEYS_PER_PAGE, 64, generator=g)
    return torch.randn(rows, 9, 64, generator=g), k, v


@given(st.integers(1, 20), st.integers(1, 2), st.data())
@settings(deadline=None, max_examples=20)
def test_equals_the_plain_loop(rows: int, pages: int, data: st.DataObject) -> None:
    q, k, v = sample(rows, pages, data.draw(st.integers(0, 99)))
    lengths = st.integers(1, pages * KEYS_PER_PAGE)
    visible = torch.tensor(data.draw(st.lists(lengths, min_size=rows, max_size=rows)))
    torch.testing.assert_close(
        run(q, k, v, visible).double(), plain_attention(q, k, v, visible), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("start", [1, 7, 100, 255, 380, 505, 511, 512, 513, 700, 1000])
@pytest.mark.parametrize("rows", [2, 5, 8, 9, 16, 20])
def test_a_row_is_bit_equal_alone(start: int, rows: int) -> None:
    q, k, v = sample(rows, 2, start)
    visible = start + torch.arange(rows) + 1
    together = run(q, k, v, visible)
    for row in range(rows):
        alone = run(q[row : row + 1], k, v, visible[row : row + 1])
        assert torch.equal(alone[0], together[row]), f"row {row}"


def test_what_is_not_seen_does_not_matter() -> None:
    q, k, v = sample(4, 1, 3)
    visible = torch.tensor([10, 11, 20, 20])
    before = run(q, k, v, visible)
    k[:, 20:] = 1e4
    v[:, 20:] = -1e4
    assert torch.equal(run(q, k, v, visible), before)
