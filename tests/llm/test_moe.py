"""Routing: hand-made scores, and properties that hold for any."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.models.linear import FloatLinear
from llm.models.moe import Expert, MixtureOfExperts, route
from llm.models.spec import MoeConfig

SIGMOID = MoeConfig(4, 2, 8, score="sigmoid", renormalise=True, scale=2.5)
LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def routed(logits: torch.Tensor, bias: torch.Tensor | None, config: MoeConfig) -> dict[int, float]:
    """Weight of each chosen expert of the first row."""
    chosen, weights = route(logits, bias, config)
    return dict(zip(chosen[0].tolist(), weights[0].tolist(), strict=True))


def test_renormalised_and_scaled() -> None:
    a, b = torch.sigmoid(LOGITS[0, :2]).tolist()
    expected = {0: 2.5 * a / (a + b), 1: 2.5 * b / (a + b)}
    assert routed(LOGITS, None, SIGMOID) == pytest.approx(expected)


def test_softmax_weights_as_they_are() -> None:
    shares = LOGITS.softmax(dim=1)[0].tolist()
    weights = routed(LOGITS, None, MoeConfig(4, 2, 8))
    assert weights == pytest.approx({0: shares[0], 1: shares[1]})


def test_the_bias_moves_the_choice_and_not_the_weight() -> None:
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    a, d = torch.sigmoid(LOGITS[0, [0, 3]]).tolist()
    expected = {0: 2.5 * a / (a + d), 3: 2.5 * d / (a + d)}
    assert routed(LOGITS, bias, SIGMOID) == pytest.approx(expected)


def test_a_group_counts_as_much_as_its_best_two() -> None:
    # The best expert of all stands alone in its group; two good ones outweigh it.
    logits = torch.tensor([[4.0, -9.0, -9.0, 2.0, 2.5, -9.0]])
    config = MoeConfig(6, 2, 8, score="sigmoid", num_groups=2, groups_per_token=1)
    assert set(routed(logits, None, config)) == {3, 4}


def test_one_expert_keeps_its_score() -> None:
    config = MoeConfig(4, 1, 8, score="sigmoid", renormalise=True)
    assert routed(LOGITS, None, config) == pytest.approx({0: torch.sigmoid(LOGITS[0, 0]).item()})


@settings(deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 2, 4]), st.booleans())
def test_choices_stay_within_the_best_groups(seed: int, best: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(9, 16, generator=generator)
    bias = torch.randn(16, generator=generator) if biased else None
    config = MoeConfig(
        16, 4, 8, score="sigmoid", num_groups=4, groups_per_token=best, renormalise=True, scale=3.0
    )
    chosen, weights = route(logits, bias, config)
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    assert all(len({e // 4 for e in row}) <= best for row in chosen.tolist())
    torch.testing.assert_close(weights.sum(dim=1), torch.full((9,), 3.0))


def test_every_row_gets_its_own_experts() -> None:
    config = MoeConfig(3, 1, 2)
    router = 10 * torch.eye(3)
    experts = [
        Expert(FloatLinear(torch.ones(4, 3)), FloatLinear(torch.full((3, 2), float(i + 1))))
        for i in range(3)
    ]
    x = torch.eye(3)[[2, 0, 1, 2]]
    out = MixtureOfExperts(config, router, None, experts)(x)
    ratio = out[:, 0] / out[1, 0]
    torch.testing.assert_close(ratio, torch.tensor([3.0, 1.0, 2.0, 3.0]))
