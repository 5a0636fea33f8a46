"""Each policy against the plainest writing of its rule, and what all of them promise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.policy import (
    BlockView,
    Credit,
    EntropyBound,
    Factor,
    FixedSteps,
    Flags,
    Hierarchical,
    Memory,
    Policy,
    Threshold,
)
from tests.llm import slow_reference as slow

Position = tuple[float, float, bool, int]
"""Confidence, entropy, masked, token."""

PAIRS: list[tuple[Policy, slow.MakePick]] = [
    (Threshold(0.9), slow.threshold(0.9)),
    (Threshold(0.25), slow.threshold(0.25)),
    (Factor(0.75), slow.factor(0.75)),
    (Factor(2.0), slow.factor(2.0)),
    (EntropyBound(0.0), slow.entropy_bound(0.0)),
    (EntropyBound(1.0), slow.entropy_bound(1.0)),
    (Credit(0.9), slow.credit(0.9, 0.7, 0.8, 0.2)),
    (Hierarchical(0.9, 0.5), slow.hierarchical(0.9, 0.5)),
    (Hierarchical(0.75, 0.0), slow.hierarchical(0.75, 0.0)),
    (FixedSteps(1), slow.fixed_steps(1)),
    (FixedSteps(3), slow.fixed_steps(3)),
    (FixedSteps(50), slow.fixed_steps(50)),
]
# Quarters make ties frequent and sums exact.
positions = st.tuples(
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]),
    st.booleans(),
    st.integers(1, 3),
)
blocks = st.lists(positions, min_size=1, max_size=12).filter(lambda b: any(m for *_, m, _ in b))


def view_of(block: list[Position]) -> BlockView:
    confidence, entropy, masked, token = (np.array(column) for column in zip(*block, strict=True))
    return BlockView(confidence, entropy, masked, token)


def view(confidence: list[float], *, entropy: list[float] | None = None) -> BlockView:
    n = len(confidence)
    return BlockView(
        np.array(confidence), np.array(entropy or [1.0] * n), np.ones(n, bool), np.ones(n, int)
    )


def choose(policy: Policy, seen: BlockView) -> list[int]:
    return np.flatnonzero(policy.choose(seen, Memory.fresh(seen.masked))[0]).tolist()


@pytest.mark.parametrize(("policy", "make_pick"), PAIRS, ids=lambda p: repr(p)[:40])
@given(looks=st.lists(st.lists(positions, min_size=12, max_size=12), min_size=12, max_size=12))
@settings(deadline=None, max_examples=40)
def test_a_whole_block_as_by_the_plain_rule(
    policy: Policy, make_pick: slow.MakePick, looks: list[list[Position]]
) -> None:
    """Look after look until no mask is left: always one at least, and never one that is none."""
    masked = np.array([m for _, _, m, _ in looks[0]])
    memory, pick = Memory.fresh(masked), make_pick(int(masked.sum()))
    for look in looks:
        if not masked.any():
            break
        drawn = view_of(look)
        seen = BlockView(drawn.confidence, drawn.entropy, masked, drawn.token)
        chosen, memory = policy.choose(seen, memory)
        expected = pick(
            [(at, p, h, token) for at, (p, h, _, token) in enumerate(look) if masked[at]]
        )
        assert set(np.flatnonzero(chosen).tolist()) == expected
        assert chosen.any() and not (chosen & ~masked).any()
        masked = masked & ~chosen
    assert not masked.any(), "twelve positions take at most twelve steps"


@pytest.mark.parametrize(("policy", "_pick"), PAIRS, ids=lambda p: repr(p)[:40])
@given(block=blocks)
def test_the_same_look_gives_the_same_choice_and_is_left_as_it_was(
    policy: Policy, _pick: slow.MakePick, block: list[Position]
) -> None:
    seen, memory = view_of(block), Memory.fresh(view_of(block).masked)
    before = memory.credit.copy()
    first, _ = policy.choose(seen, memory)
    second, _ = policy.choose(seen, memory)
    assert (first == second).all()
    for kept, drawn in zip(
        (seen.confidence, seen.entropy, seen.masked, seen.token),
        zip(*block, strict=True),
        strict=True,
    ):
        assert kept.tolist() == list(drawn)
    assert (memory.credit == before).all()


@pytest.mark.parametrize(
    "policy",
    [Threshold(0.6), Factor(1.0), EntropyBound(1.0), Credit(0.8), FixedSteps(3)],
    ids=lambda p: type(p).__name__,
)
@given(data=st.data())
def test_choices_move_with_the_positions(policy: Policy, data: st.DataObject) -> None:
    """Without ties it does not matter where in the block a position stands (runs apart)."""
    n = data.draw(st.integers(1, 10))
    hundredths = st.integers(1, 99).map(lambda number: number / 100)
    unique = st.lists(hundredths, min_size=n, max_size=n, unique=True)
    masked = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    masked[0] = True
    seen = BlockView(np.array(data.draw(unique)), np.array(data.draw(unique)), masked, np.arange(n))
    order = np.array(data.draw(st.permutations(range(n))))
    moved = BlockView(*(a[order] for a in (seen.confidence, seen.entropy, masked, seen.token)))
    there = policy.choose(seen, Memory.fresh(masked))[0]
    here: Flags = policy.choose(moved, Memory.fresh(masked[order]))[0]
    assert here.tolist() == there[order].tolist()


@pytest.mark.parametrize(
    ("policy", "confidence", "expected"),
    [
        (Threshold(0.9), [0.9, 0.5, 0.95], [0, 2]),
        (Threshold(0.9), [0.2, 0.5, 0.5], [1]),
        # n = 2: 3 x 0.1 = 0.3 < 0.4; n = 3: 4 x 0.3 = 1.2.
        (Factor(0.4), [0.9, 0.7, 0.95], [0, 2]),
        (Factor(0.4), [0.7, 0.7], [0]),
        (Hierarchical(0.9, 0.5), [0.6, 0.8, 0.7], [1]),
        (Hierarchical(0.9, 0.5), [0.95, 0.8, 0.92], [0, 2]),
        (FixedSteps(2), [0.1, 0.3, 0.2], [1, 2]),
    ],
)
def test_by_hand(policy: Policy, confidence: list[float], expected: list[int]) -> None:
    assert choose(policy, view(confidence)) == expected


def test_entropies_are_added_up_from_the_lowest() -> None:
    seen = view([0.1] * 4, entropy=[0.5, 0.125, 2.0, 0.25])
    assert choose(EntropyBound(0.375), seen) == [1, 3]
    assert choose(EntropyBound(0.3), seen) == [1]
    assert choose(EntropyBound(0.0), seen) == [1], "one is always revealed"


def test_each_run_of_masks_gives_its_best() -> None:
    masked = np.array([True, True, False, True, True, False, True])
    seen = BlockView(
        np.array([0.6, 0.7, 1.0, 0.8, 0.6, 1.0, 0.3]), np.ones(7), masked, np.ones(7, int)
    )
    assert choose(Hierarchical(0.9, 0.5), seen) == [1, 3]


def credited(policy: Credit, looks: list[tuple[float, int]]) -> list[bool]:
    """Position 0 after each look; position 1 is the one that is always revealed."""
    memory = Memory.fresh(np.ones(2, bool))
    revealed = []
    for confidence, token in looks:
        seen = BlockView(
            np.array([confidence, 1.0]), np.ones(2), np.ones(2, bool), np.array([token, 9])
        )
        chosen, memory = policy.choose(seen, memory)
        revealed.append(bool(chosen[0]))
    return revealed


def test_credit_rewards_a_token_that_stays_and_not_one_that_changes() -> None:
    policy = Credit(threshold=0.83)
    assert credited(policy, [(0.7, 5)] * 4) == [False, False, True, True]
    assert credited(policy, [(0.7, 5), (0.7, 6), (0.7, 5), (0.7, 6)]) == [False] * 4


def test_remainders_come_first() -> None:
    masked = np.ones(7, bool)
    memory, counts = Memory.fresh(masked), []
    while masked.any():
        seen = BlockView(np.full(7, 0.5), np.ones(7), masked, np.ones(7, int))
        chosen, memory = FixedSteps(3).choose(seen, memory)
        assert np.flatnonzero(chosen).tolist() == np.flatnonzero(masked)[: chosen.sum()].tolist()
        masked = masked & ~chosen
        counts.append(int(chosen.sum()))
    assert counts == [3, 2, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Threshold(0.0),
        lambda: Threshold(1.5),
        lambda: Factor(0),
        lambda: EntropyBound(-0.1),
        lambda: Credit(decay=1.1),
        lambda: Credit(weight=-1),
        lambda: Hierarchical(0.5, 0.6),
        lambda: FixedSteps(0),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Policy]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()
