"""Int8 linear layers: exact sums, small error, rows that do not know of each other."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.models.linear import Int8Linear, quantize_rows, weight_limit


@given(st.integers(1, 40), st.sampled_from([32, 64, 192]), st.integers(1, 70), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_equals_integer_arithmetic_written_out(rows: int, size: int, out: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    linear = Int8Linear(torch.randn(out, size, generator=generator))
    x = torch.randn(rows, size, generator=generator) * 10
    quantized, scale = quantize_rows(x)
    exact = quantized.to(torch.int64) @ linear.weight.to(torch.int64).t()
    expected = exact.to(torch.float32) * scale * linear.scale
    assert torch.equal(linear(x), expected)


@given(st.integers(1, 64), st.integers(0, 63), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_a_row_is_the_same_alone_and_among_others(rows: int, row: int, seed: int) -> None:
    row %= rows
    generator = torch.Generator().manual_seed(seed)
    linear = Int8Linear(torch.randn(96, 64, generator=generator))
    x = torch.randn(rows, 64, generator=generator)
    x[(row + 1) % rows] *= 1000  # a neighbour that one scale for all rows would bow to
    alone = x[row : row + 1].clone()
    if rows > 1:
        assert torch.equal(linear(x)[row], linear(alone)[0])


def test_error_against_float_is_small() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(128, 256, generator=generator)
    x = torch.randn(16, 256, generator=generator)
    exact = x @ weight.t()
    error = (Int8Linear(weight)(x) - exact).norm() / exact.norm()
    # Two roundings of 1/127 steps of a Gaussian's maximum (~3 sigma): about 1 % each.
    assert error < 0.02


def test_zero_rows_and_zero_channels_stay_zero() -> None:
    weight = torch.randn(8, 32)
    weight[3] = 0
    out = Int8Linear(weight)(torch.zeros(2, 32))
    assert torch.equal(out, torch.zeros(2, 8))
    assert torch.equal(Int8Linear(weight)(torch.randn(2, 32))[:, 3], torch.zeros(2))


def test_extremes_do_not_saturate() -> None:
    limit = weight_limit()
    for sign in (1.0, -1.0):
        linear = Int8Linear(torch.full((4, 1536), sign))
        assert int(linear.weight.abs().max()) == limit
        out = linear(torch.full((3, 1536), -5.0))
        torch.testing.assert_close(out, torch.full((3, 4), -5.0 * sign * 1536))
