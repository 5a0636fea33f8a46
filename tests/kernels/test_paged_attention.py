"""The torch reference of paged attention against a loop, and against contiguous attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import KEYS_PER_PAGE, block_attention, visibility_bias
from kernels.paged_attention import paged_attention, paged_attention_reference
from tests.kernels.paged_cases import Shape, attention_by_hand, make_case, shapes

# Sums of up to 128 products for a score and of 60 values, rounded to 6e-8 each: 7e-7 measured.
TOLERANCE = {"atol": 5e-6, "rtol": 5e-6}


@given(shapes(max_rows=3, max_visible=40), st.integers(0, 99))
@settings(deadline=None, max_examples=15)
def test_equals_the_definition(shape: Shape, seed: int) -> None:
    case = make_case(shape, seed=seed)
    torch.testing.assert_close(
        case.run(paged_attention).double(), attention_by_hand(case), **TOLERANCE
    )


@given(shapes(), st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_a_row_is_bit_equal_alone(shape: Shape, seed: int) -> None:
    case = make_case(shape, seed=seed)
    together = case.run(paged_attention_reference)
    for sequence, row in case.rows():
        alone = case.row_alone(sequence, row).run(paged_attention_reference)
        assert torch.equal(alone[0], together[row]), f"row {row}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_only_round_the_result(dtype: torch.dtype) -> None:
    case = make_case(Shape(((3, 90), (17,)), 2, 3, 64, 16), dtype)
    wide = {name: getattr(case, name).float() for name in ("query", "key_pages", "value_pages")}
    narrow = case.run(paged_attention)
    assert narrow.dtype == dtype
    assert torch.equal(narrow, case.run(paged_attention, **wide).to(dtype))


def test_equals_attention_over_a_contiguous_cache() -> None:
    lengths = (4, 4, 40, 41, 60, 60)
    case = make_case(Shape((lengths,), 3, 3, 64, 16))
    pages = case.block_table[0, : -(-60 // 16)]
    keys, values = torch.zeros(2, 3, KEYS_PER_PAGE, 64)
    keys[:, :60] = case.key_pages[pages].flatten(0, 1)[:60].transpose(0, 1)
    values[:, :60] = case.value_pages[pages].flatten(0, 1)[:60].transpose(0, 1)
    contiguous = block_attention(
        case.query, keys, values, visibility_bias(torch.tensor(lengths), group=3)
    )
    torch.testing.assert_close(case.run(paged_attention), contiguous, **TOLERANCE)


def test_a_row_that_sees_nothing_is_zero() -> None:
    case = make_case(Shape(((0, 5), ()), 1, 1, 16, 4))
    assert torch.equal(case.run(paged_attention)[0], torch.zeros(1, 16))
