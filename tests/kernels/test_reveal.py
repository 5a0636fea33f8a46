"""The torch reference of what logits reveal, against the definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from kernels.reveal import reveal, reveal_reference
from tests.kernels.logit_cases import Logits, logit_cases, revealed_by_hand

# A sum of 10,000 exponentials rounded to 6e-8 each: an entropy of 9 is 7e-6 off, measured.
TOLERANCE = {"atol": 2e-6, "rtol": 5e-6}


@given(logit_cases((torch.float32, torch.float16, torch.bfloat16)))
@settings(deadline=None, max_examples=40)
def test_equals_the_definitions(case: Logits) -> None:
    before = case.logits.clone()
    ids, probability, entropy = reveal(*case)
    assert (ids.dtype, probability.dtype, entropy.dtype) == (
        torch.int32,
        torch.float32,
        torch.float32,
    )
    expected_ids, *expected = zip(*revealed_by_hand(case), strict=True)
    assert ids.tolist() == list(expected_ids)
    torch.testing.assert_close(probability, torch.tensor(expected[0]), **TOLERANCE)
    torch.testing.assert_close(entropy, torch.tensor(expected[1]), **TOLERANCE)
    assert torch.equal(case.logits, before)


@given(logit_cases())
@settings(deadline=None, max_examples=20)
def test_a_row_is_bit_equal_alone(case: Logits) -> None:
    together = reveal_reference(*case)
    for row in range(len(case.logits)):
        alone = reveal_reference(case.logits[row : row + 1], case.forbidden_id)
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))


def test_of_equal_logits_the_lowest_allowed_id_is_best() -> None:
    ids, probability, entropy = reveal(torch.zeros(1, 5), 0)
    assert ids.tolist() == [1]
    assert probability.item() == pytest.approx(1 / 4)
    assert entropy.item() == pytest.approx(math.log(4))


def test_a_certain_row_has_no_entropy() -> None:
    logits = torch.full((1, 5), -torch.inf)
    logits[0, 3] = 7.0
    assert [x.item() for x in reveal(logits, 4)] == [3, 1.0, 0.0]


def test_no_rows_reveal_nothing() -> None:
    assert [len(x) for x in reveal(torch.empty(0, 5), 0)] == [0, 0, 0]


def test_refuses_a_token_that_is_not_in_the_vocabulary() -> None:
    with pytest.raises(AssertionError, match="not in the vocabulary"):
        reveal(torch.zeros(1, 5), -1)
