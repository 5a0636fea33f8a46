"""Verified drafts against direct sampling: the same distribution, whatever was drafted.

Statistical tests are chi-square tests at a significance of 1e-6 on fixed seeds, so they give the
same answer on every run; rules that are wrong on purpose must fail them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine import sampling
from llm.engine.sampling import Purpose, SamplingParams, adjusted_logits, distribution, draw
from llm.engine.verify import Verdict, verify

VOCABULARY = 3
NUM_TOKENS = 3
NUM_DRAFTS = 2
NUM_SEEDS = 3000
SIGNIFICANCE = 1e-6

uniform = cache(sampling.uniform)


def fits(counts: Counter, expected: dict) -> bool:
    """Pearson's chi-square test of counts against probabilities, rare cells pooled.

    The critical value is Wilson and Hilferty's, which for few degrees of freedom is a little
    too high: the significance is 1e-6 or less.
    """
    total = sum(counts.values())
    if any(expected[cell] == 0 for cell in counts):
        return False
    cells = [(counts[cell], total * p) for cell, p in expected.items() if total * p >= 5]
    rest = total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells)
    if rest[1] >= 5:
        cells.append(rest)
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    degrees = max(len(cells) - 1, 1)
    spread = 2 / (9 * degrees)
    z = NormalDist().inv_cdf(1 - SIGNIFICANCE)
    return bool(statistic < degrees * (1 - spread + z * math.sqrt(spread)) ** 3)


# A target and drafters: any functions of the whole prefix will do.


@cache
def random_row(kind, prefix):
    return np.random.default_rng([kind, len(prefix), *prefix]).dirichlet([0.7] * VOCABULARY)


def target(prefix):
    return random_row(0, prefix)


def target_with_a_hole(prefix):
    row = target(prefix).copy()
    row[sum(prefix) % VOCABULARY] = 0
    return row / row.sum()


DRAFTERS = {
    "the target itself": target,
    "close": lambda prefix: 0.8 * target(prefix) + 0.2 * random_row(1, prefix),
    "far": lambda prefix: random_row(2, prefix),
    "uniform": lambda prefix: np.full(VOCABULARY, 1 / VOCABULARY),
    "certain": lambda prefix: np.eye(VOCABULARY)[len(prefix) % VOCABULARY],
    "contrary": lambda prefix: (1 - target(prefix)) / (VOCABULARY - 1),
}


def generate(seed, rule, drafter, model, *, points):
    """The first tokens of one text, from as many verdicts as it takes."""
    tokens = ()
    while len(tokens) < NUM_TOKENS:
        start, drafts, guesses = len(tokens), (), []
        for i in range(NUM_DRAFTS):
            guess = drafter(tokens + drafts)
            token = np.argmax(guess) if points else draw(guess, uniform(seed, start + i, 2))
            drafts += (int(token),)
            guesses.append(guess)
        num_accepted, next_token = rule(
            drafts,
            None if points else guesses,
            lambda i, before=tokens, drafts=drafts: model(before + drafts[:i]),
            lambda i, purpose, start=start: uniform(seed, start + i, purpose),
        )
        tokens += (*drafts[:num_accepted], next_token)
    return tokens[:NUM_TOKENS]


def generate_directly(seed, model):
    tokens = ()
    for position in range(NUM_TOKENS):
        tokens += (draw(model(tokens), uniform(seed, position, Purpose.TOKEN)),)
    return tokens


def joint(model):
    """The exact probability of every text of NUM_TOKENS tokens."""
    return {
        text: math.prod(model(text[:i])[token] for i, token in enumerate(text))
        for text in itertools.product(range(VOCABULARY), repeat=NUM_TOKENS)
    }


def joint_fits(rule, drafter, model=target, *, points=False):
    texts = (generate(seed, rule, drafter, model, points=points) for seed in range(NUM_SEEDS))
    return fits(Counter(texts), joint(model))


# Wrong on purpose


def always_accept(drafts, guesses, rows, uniforms):
    return Verdict(len(drafts), draw(rows(len(drafts)), uniforms(len(drafts), Purpose.TOKEN)))


def redraw_from_the_target(drafts, guesses, rows, uniforms):
    """Forgets that what the drafter proposes too seldom must be made up for."""
    verdict = verify(drafts, guesses, rows, uniforms)
    token = draw(rows(verdict.num_accepted), uniforms(verdict.num_accepted, Purpose.TOKEN))
    return Verdict(verdict.num_accepted, token)


def one_number_for_both(drafts, guesses, rows, uniforms):
    """Draws the replacement with the number that rejected, which is known to be large."""
    return verify(drafts, guesses, rows, lambda i, purpose: uniforms(i, Purpose.ACCEPT))


def stale_rows(drafts, guesses, rows, uniforms):
    """Takes every row after the first as if no draft had been accepted."""
    return verify(drafts, guesses, lambda i: rows(0), uniforms)


# The joint distribution of three positions


@pytest.mark.parametrize("points", [False, True], ids=["drawn", "points"])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_texts_are_distributed_as_by_direct_sampling(drafter, points):
    assert joint_fits(verify, drafter, points=points)


@pytest.mark.parametrize("drafter", ["far", "uniform"])
def test_tokens_that_the_target_excludes_never_come_out(drafter):
    assert joint_fits(verify, DRAFTERS[drafter], target_with_a_hole)


def test_direct_sampling_itself_passes():
    texts = Counter(generate_directly(seed, target) for seed in range(NUM_SEEDS))
    assert fits(texts, joint(target))


@pytest.mark.parametrize(
    ("rule", "drafter", "points"),
    [
        (always_accept, "far", False),
        (always_accept, "close", False),
        (always_accept, "far", True),
        (redraw_from_the_target, "far", False),
        (one_number_for_both, "certain", False),
        (stale_rows, "far", False),
        (stale_rows, "far", True),
    ],
)
def test_wrong_rules_fail_the_same_test(rule, drafter, points):
    assert not joint_fits(rule, DRAFTERS[drafter], points=points)


# One token


@pytest.mark.parametrize("case", range(8))
def test_one_token_is_distributed_as_the_target(case):
    size = 2 + case
    rng = np.random.default_rng([23, case])
    wanted, guess = rng.dirichlet([0.6] * size, 2)
    unverified, verified = Counter(), Counter()
    for seed in range(NUM_SEEDS):
        draft = draw(guess, uniform(seed, 0, Purpose.DRAFT))
        arguments = [draft], [guess], lambda i: wanted, lambda i, p, seed=seed: uniform(seed, i, p)
        for rule, counts in ((verify, verified), (always_accept, unverified)):
            verdict = rule(*arguments)
            counts[draft if verdict.num_accepted else verdict.next_token] += 1
    assert fits(verified, dict(enumerate(wanted)))
    assert not fits(unverified, dict(enumerate(wanted)))


weights = st.lists(st.sampled_from([0, 0, 1, 2, 5, 20]), min_size=4, max_size=4).filter(any)
GRID = [(i + 0.5) / 200 for i in range(200)]


@settings(max_examples=40)
@given(weights, weights)
def test_one_token_has_the_targets_distribution_by_counting_all_cases(wanted, guess):
    """No chance at all: every draft with every number of a grid, which errs by 1/200 a time."""
    wanted, guess = np.array(wanted) / sum(wanted), np.array(guess) / sum(guess)
    result, accepted = np.zeros(4), 0.0
    for draft in np.nonzero(guess)[0]:

        def outcome(accept, token, draft=draft):
            numbers = {Purpose.ACCEPT: accept, Purpose.TOKEN: token}
            return verify([draft], [guess], lambda i: wanted, lambda i, p: numbers[p])

        share = sum(outcome(number, 0.5).num_accepted for number in GRID) / len(GRID)
        accepted += guess[draft] * share
        result[draft] += guess[draft] * share
        if share < 1:
            for number in GRID:
                replacement = outcome(1 - 2**-53, number).next_token
                result[replacement] += guess[draft] * (1 - share) / len(GRID)
    assert result == pytest.approx(wanted, abs=2 / 200)
    assert accepted == pytest.approx(np.minimum(wanted, guess).sum(), abs=1 / 200)


@settings(max_examples=40)
@given(weights, st.integers(0, 3))
def test_a_point_stands_with_its_probability_and_is_replaced_from_the_rest(wanted, draft):
    wanted = np.array(wanted) / sum(wanted)
    verdicts = [verify([draft], None, lambda i: wanted, lambda i, p, n=n: n) for n in GRID]
    stood = [verdict.num_accepted for verdict in verdicts]
    assert sum(stood) / len(GRID) == pytest.approx(wanted[draft], abs=1 / 200)
    replaced = Counter(v.next_token for v in verdicts if not v.num_accepted)
    for token in range(4):
        share = wanted[token] if token != draft else 0
        assert replaced[token] / len(GRID) == pytest.approx(share, abs=1 / 200)


# Texts that a seed promises


@given(st.integers(0, 10**6), st.lists(st.integers(0, VOCABULARY - 1), min_size=30, max_size=30))
def test_with_points_a_seed_gives_the_text_of_direct_sampling_whatever_is_drafted(seed, luck):
    guesses = iter(luck)

    def drafter(prefix):
        return np.eye(VOCABULARY)[next(guesses)]

    assert generate(seed, verify, drafter, target, points=True) == generate_directly(seed, target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=st.integers(0, 99), luck=st.lists(st.booleans(), min_size=60, max_size=60))
def test_penalties_count_accepted_drafts(temperature, seed, luck):
    """A long text under a strong penalty: one row with a stale count would change it."""
    params = SamplingParams(temperature=temperature, frequency_penalty=1.5, presence_penalty=0.5)
    logits = np.random.default_rng(3).normal(size=9).astype(np.float32)

    def row(generated):
        adjusted = adjusted_logits(
            logits, params, prompt=(), generated=generated, mask_id=0, eos_ids=()
        )
        return distribution(adjusted, params)

    direct = []
    for position in range(20):
        direct.append(draw(row(direct), uniform(seed, position, Purpose.TOKEN)))

    tokens, lucky = [], iter(luck)
    while len(tokens) < 20:
        start = len(tokens)
        drafts = [t if next(lucky) else 1 for t in direct[start : start + 3]]
        num_accepted, next_token = verify(
            drafts,
            None,
            lambda i, before=tuple(tokens), drafts=drafts: row([*before, *drafts[:i]]),
            lambda i, purpose, start=start: uniform(seed, start + i, purpose),
        )
        tokens += [*drafts[:num_accepted], next_token]
    assert tokens[:20] == direct


# The contract of one call


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize(
    ("best", "drafts", "verdict"),
    [
        ([2], [], (0, 2)),
        ([2, 1, 0], [2, 1], (2, 0)),
        ([2, 1, 0], [2, 0], (1, 1)),
        ([2, 1, 0], [1, 1], (0, 2)),
    ],
)
def test_greedy_drafts_stand_while_they_equal_the_best_token(points, best, drafts, verdict):
    asked = []

    def rows(i):
        asked.append(i)
        return np.eye(3)[best[i]]

    guesses = None if points else [np.array([0.2, 0.3, 0.5])] * len(drafts)
    for number in (0.0, 0.5, 1 - 2**-53):
        asked.clear()
        assert verify(drafts, guesses, rows, lambda i, p, n=number: n) == verdict
        assert asked == list(range(verdict[0] + 1)), "in order, once, none behind a rejection"


def test_a_rejection_by_rounding_alone_still_gives_a_token():
    guess = np.array([0.5, 0.5])
    wanted = np.array([0.5 - 2**-54, 0.5])
    verdict = verify([0], [guess], lambda i: wanted, lambda i, purpose: 1 - 2**-53)
    assert verdict == (0, 1)


def test_a_draft_that_its_distribution_excludes_is_our_mistake():
    with pytest.raises(AssertionError):
        verify([0], [np.array([0.0, 1.0])], lambda i: np.array([0.5, 0.5]), lambda i, p: 0.5)
    with pytest.raises(AssertionError):
        verify([0, 1], [np.array([0.5, 0.5])], lambda i: np.array([0.5, 0.5]), lambda i, p: 0.5)
