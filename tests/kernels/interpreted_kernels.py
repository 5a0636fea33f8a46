"""The Triton kernels on the CPU, against their references; test_triton runs it in a process of its
own, as TRITON_INTERPRET=1 is read when the kernels are defined.

No bfloat16: the interpreter multiplies its bit patterns. Fresh memory is NaN (int32: the largest
number), so what a kernel forgets to write is seen.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.paged_attention import paged_attention_reference, paged_attention_triton
from kernels.reveal import reveal_reference, reveal_triton
from tests.kernels.logit_cases import Logits, logit_cases
from tests.kernels.paged_cases import Shape, make_case, shapes

torch.use_deterministic_algorithms(True)

TOLERANCE = {
    # Both sum up to 150 values in float32, in different orders: 7e-7 measured.
    torch.float32: {"atol": 5e-6, "rtol": 5e-6},
    # The kernel rounds each weight to 11 bits before it multiplies values, 2^-11 = 5e-4 of at
    # most about 4, and both round the result: 1e-3 measured.
    torch.float16: {"atol": 2e-3, "rtol": 1e-3},
}


def test_fresh_memory_is_poisoned() -> None:
    assert torch.empty(4).isnan().all()
    assert (torch.empty(4, dtype=torch.int32) == 2**31 - 1).all()


@given(shapes(), st.sampled_from(list(TOLERANCE)), st.integers(0, 99))
@settings(deadline=None, max_examples=15)
def test_attention_equals_the_reference(shape: Shape, dtype: torch.dtype, seed: int) -> None:
    case = make_case(shape, dtype, seed)
    actual = case.run(paged_attention_triton)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, case.run(paged_attention_reference), **TOLERANCE[dtype])


@pytest.mark.parametrize(
    "shape",
    [
        Shape(((1,) * 70, (200,) * 3), num_kv_heads=1, group=3, head_size=32, page_size=16),
        Shape(((), (5,), (), (9, 9), ()), num_kv_heads=2, group=1, head_size=16, page_size=4),
        Shape(((33,) * 5,), num_kv_heads=1, group=71, head_size=64, page_size=8),
    ],
    ids=["more rows than a tile", "sequences without rows", "more heads than a tile"],
)
def test_attention_in_odd_shapes(shape: Shape) -> None:
    case = make_case(shape)
    torch.testing.assert_close(
        case.run(paged_attention_triton),
        case.run(paged_attention_reference),
        **TOLERANCE[torch.float32],
    )


@given(shapes(max_rows=4), st.sampled_from(list(TOLERANCE)), st.data())
@settings(deadline=None, max_examples=8)
def test_an_attention_row_is_bit_equal_alone(
    shape: Shape, dtype: torch.dtype, data: st.DataObject
) -> None:
    case = make_case(shape, dtype)
    together = case.run(paged_attention_triton)
    if case.rows():
        sequence, row = data.draw(st.sampled_from(case.rows()))
        alone = case.row_alone(sequence, row).run(paged_attention_triton)
        assert torch.equal(alone[0], together[row])


def test_attention_with_no_rows_at_all() -> None:
    case = make_case(Shape(((), ()), 1, 2, 16, 4))
    assert case.run(paged_attention_triton).shape == (0, 2, 16)


@given(logit_cases())
@settings(deadline=None, max_examples=15)
def test_reveal_equals_the_reference(case: Logits) -> None:
    actual, expected = reveal_triton(*case), reveal_reference(*case)
    assert torch.equal(actual.ids, expected.ids)
    # Two orders of summing 10,000 exponentials rounded to 6e-8: an entropy of 9 is 7e-6 off.
    for name in ("probability", "entropy"):
        torch.testing.assert_close(
            getattr(actual, name), getattr(expected, name), atol=2e-6, rtol=5e-6
        )


@given(logit_cases(), st.data())
@settings(deadline=None, max_examples=8)
def test_a_revealed_row_is_bit_equal_alone(case: Logits, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(case.logits) - 1))
    together = reveal_triton(*case)
    alone = reveal_triton(case.logits[row : row + 1], case.forbidden_id)
    assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))


def test_the_lowest_of_equal_logits_is_best_across_tiles() -> None:
    logits = torch.zeros(1, 20_000)
    logits[0, [3, 700, 4095, 4096, 19_999]] = 5.0
    assert reveal_triton(logits, 3).ids.tolist() == [700]


def test_reveal_walks_through_rows_that_lie_apart() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))[::2, 20:250]
    assert torch.equal(reveal_triton(logits, 0).ids, reveal_reference(logits, 0).ids)


def test_no_rows_reveal_nothing() -> None:
    assert [len(x) for x in reveal_triton(torch.empty(0, 5), 0)] == [0, 0, 0]


def test_refuses_bfloat16() -> None:
    with pytest.raises(AssertionError, match="bfloat16"):
        reveal_triton(torch.zeros(1, 5, dtype=torch.bfloat16), 0)
