"""Sampling of one row against slow references: sorted loops, plain Python, no cleverness."""

from __future__ import annotations

import math
import time
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llm.engine.sampling import (
    Purpose,
    SamplingParams,
    adjusted_logits,
    distribution,
    draw,
    top_logprobs,
    uniform,
)
from llm.types import InvalidRequestError

VOCABULARY = 12
MASK = 0
EOS = frozenset({1, 2})

# Quarters: exact in float32, and coarse enough for ties to be common.
rows = st.lists(
    st.integers(-24, 24).map(lambda quarters: quarters / 4),
    min_size=VOCABULARY,
    max_size=VOCABULARY,
).map(lambda values: np.array(values, dtype=np.float32))
tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=20)
temperatures = st.floats(0.1, 2)


def adjust(row, params, *, prompt=(), generated=()):
    return adjusted_logits(
        row, params, prompt=prompt, generated=generated, mask_id=MASK, eos_ids=EOS
    )


def softmax(row, temperature=1.0):
    best = max(row)
    weights = [math.exp((float(score) - float(best)) / temperature) for score in row]
    return [weight / sum(weights) for weight in weights]


def kept_by_sorted_loop(weights, *, min_p, top_k, top_p):
    """Ids that stay, by the definitions: one token after the other, best first."""
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = [token for token in order if weights[token] >= min_p * max(weights)]
    order = order[: top_k or None]
    total = sum(weights[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += weights[token]
        if mass >= top_p * total:
            break
    return set(kept)


# Cut-offs


@given(
    rows,
    temperatures,
    st.one_of(st.just(0.0), st.floats(0.001, 1)),
    st.integers(0, VOCABULARY + 2),
    st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_cutoffs_keep_the_set_of_the_sorted_loop(row, temperature, min_p, top_k, top_p):
    params = SamplingParams(temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    weights = softmax(row, temperature)
    expected = kept_by_sorted_loop(weights, min_p=min_p, top_k=top_k, top_p=top_p)
    # Where a threshold falls on a token but for rounding, either set is right.
    for nudge in (1 - 1e-9, 1 + 1e-9):
        assume(
            expected
            == kept_by_sorted_loop(weights, min_p=min_p * nudge, top_k=top_k, top_p=top_p * nudge)
        )
    probabilities = distribution(row, params)
    assert set(np.nonzero(probabilities)[0]) == expected
    mass = sum(weights[token] for token in expected)
    for token in expected:
        assert probabilities[token] == pytest.approx(weights[token] / mass, rel=1e-9)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {0, 1, 3}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.35}, {1}),
        ({"top_p": 0.45}, {1, 3}),
        ({"top_p": 0.85}, {0, 1, 3}),
        ({"top_p": 0.95}, {0, 1, 2, 3}),
        ({"min_p": 0.5}, {0, 1, 3}),
        ({"min_p": 0.51}, {1, 3}),
        ({"min_p": 1.0}, {1, 3}),
        # Top-p counts shares of what top-k left: 0.4 of 0.8 is half.
        ({"top_k": 2, "top_p": 0.5}, {1}),
        ({"top_k": 2, "top_p": 0.51}, {1, 3}),
    ],
)
def test_cutoffs_on_a_row_that_one_can_check_by_hand(params, kept):
    # Weights 2 4 1 4: probabilities 2/11, 4/11, 1/11, 4/11; tokens 1 and 3 are equal.
    row = np.log([2.0, 4.0, 1.0, 4.0])
    row[0] += 1e-12  # so that min_p 0.5 does not fall on a rounding error
    assert set(np.nonzero(distribution(row, SamplingParams(temperature=1, **params)))[0]) == kept


def test_nucleus_of_a_flat_vocabulary_counts_tokens():
    probabilities = distribution(np.zeros(49_152), SamplingParams(temperature=1, top_p=0.5))
    kept = np.nonzero(probabilities)[0]
    assert abs(len(kept) - 24_576) <= 1
    assert kept[-1] == len(kept) - 1, "among equals the lowest ids stay"


# Temperature


@given(rows)
def test_temperature_zero_takes_the_best_token_and_the_lowest_id_among_equals(row):
    probabilities = distribution(row, SamplingParams())
    best = min(token for token in range(VOCABULARY) if row[token] == max(row))
    assert probabilities.tolist() == [float(token == best) for token in range(VOCABULARY)]


@given(rows)
def test_cold_is_nearly_greedy_and_temperature_one_is_softmax(row):
    cold = distribution(row, SamplingParams(temperature=0.01))
    best = [token for token in range(VOCABULARY) if row[token] == max(row)]
    # The next score is at least a quarter lower: exp(-25).
    assert cold[best] == pytest.approx([1 / len(best)] * len(best), abs=1e-9)
    assert distribution(row, SamplingParams(temperature=1)) == pytest.approx(softmax(row))


@pytest.mark.parametrize("temperature", [1e-320, 1e-9, 1e-5, 1.1e-5])
def test_temperatures_next_to_zero_do_not_overflow(temperature):
    probabilities = distribution(
        np.array([-1e4, 3e4, -np.inf]), SamplingParams(temperature=temperature)
    )
    assert probabilities.tolist() == [0, 1, 0]


def test_a_row_without_any_allowed_token_is_our_mistake():
    with pytest.raises(AssertionError):
        distribution(np.full(3, -np.inf), SamplingParams())


# Penalties, bias, forbidden tokens


@given(
    rows,
    tokens,
    tokens,
    st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.5, 2)),
    st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=4),
)
def test_penalties_and_bias_are_those_of_plain_loops(row, prompt, generated, penalties, bias):
    presence, frequency, repetition = penalties
    params = SamplingParams(
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=tuple(bias.items()),
    )
    expected = [float(score) for score in row]
    for token in range(VOCABULARY):
        if token in prompt or token in generated:
            score = expected[token]
            expected[token] = score * repetition if score < 0 else score / repetition
        for _ in range(generated.count(token)):
            expected[token] -= frequency
        if token in generated:
            expected[token] -= presence
        expected[token] += bias.get(token, 0.0)
    expected[MASK] = -math.inf
    before = row.copy()
    adjusted = adjust(row, params, prompt=prompt, generated=generated)
    assert adjusted == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert (row == before).all(), "the caller's row stays as it is"


@given(rows, tokens)
def test_defaults_change_nothing_but_the_mask(row, generated):
    adjusted = adjust(row, SamplingParams(), prompt=generated, generated=generated)
    assert adjusted[MASK] == -np.inf
    assert (adjusted[1:] == row[1:]).all()


@given(rows, tokens, st.integers(1, VOCABULARY - 1), st.sampled_from([0.0, 0.7, 2.0]))
def test_a_bias_of_100_forces_and_of_minus_100_bans(row, generated, token, temperature):
    def probability(bias):
        params = SamplingParams(
            temperature=temperature,
            frequency_penalty=1.0,
            repetition_penalty=1.5,
            logit_bias=((token, bias),),
        )
        adjusted = adjust(row, params, prompt=generated, generated=generated)
        return distribution(adjusted, params)[token]

    assert probability(100.0) > 1 - 1e-9
    assert probability(-100.0) < 1e-9


@pytest.mark.parametrize(
    ("params", "num_generated", "may_end"),
    [
        ({}, 0, True),
        ({"min_new_tokens": 3}, 0, False),
        ({"min_new_tokens": 3}, 2, False),
        ({"min_new_tokens": 3}, 3, True),
        ({"ignore_eos": True}, 1000, False),
    ],
)
def test_end_of_text_waits_for_min_new_tokens(params, num_generated, may_end):
    # A bias must not bring back what is forbidden.
    params = SamplingParams(logit_bias=((1, 100), (2, 90), (MASK, 100)), **params)
    adjusted = adjust(np.zeros(VOCABULARY), params, generated=[5] * num_generated)
    assert [bool(adjusted[eos] > -np.inf) for eos in sorted(EOS)] == [may_end, may_end]
    assert adjusted[MASK] == -np.inf
    assert adjusted[3] == 0


def test_what_a_grammar_forbids_stays_forbidden():
    row = np.array([0, 0, 0, -np.inf, 1.0])
    params = SamplingParams(
        presence_penalty=-2, repetition_penalty=0.5, logit_bias=((3, 100.0),), temperature=1
    )
    adjusted = adjust(row, params, prompt=[3], generated=[3, 3])
    assert distribution(adjusted, params)[3] == 0


def test_without_tokens_before_it_penalties_do_nothing():
    params = SamplingParams(presence_penalty=1, frequency_penalty=1, repetition_penalty=2)
    assert adjust(np.arange(4.0), params)[1:].tolist() == [1, 2, 3]


# Randomness


def test_numbers_depend_on_seed_position_and_purpose_only():
    once = {
        (seed, position, purpose): uniform(seed, position, purpose)
        for seed in (-1, 0, 1, 2**63 - 1, -(2**63))
        for position in range(20)
        for purpose in Purpose
    }
    again = {key: uniform(*key) for key in reversed(once)}
    assert again == once
    assert len(set(once.values())) == len(once), "no two of them may be the same"
    assert all(0 <= number < 1 for number in once.values())


def test_numbers_stay_what_they_were():
    """Seeds are a promise over releases: a change of generator must not go unnoticed."""
    assert [uniform(42, position, Purpose.TOKEN) for position in range(2)] == [
        0.8201981478608876,
        0.36812845090913937,
    ]


def test_numbers_are_spread_evenly_over_positions_and_over_seeds():
    for numbers in (
        [uniform(7, position, Purpose.TOKEN) for position in range(4000)],
        [uniform(seed, 3, Purpose.ACCEPT) for seed in range(4000)],
    ):
        # Kolmogorov-Smirnov distance; 2.5 / sqrt(n) has a significance of 7e-6.
        steps = np.arange(4000) / 4000
        assert np.abs(np.sort(numbers) - steps).max() < 2.5 / math.sqrt(4000)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.08


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-300, 0.1, 0.3, 1.0]), min_size=1, max_size=9),
    st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
def test_draw_is_the_inverse_of_the_running_sum(probabilities, number):
    assume(sum(probabilities) > 1e-9)
    token = draw(np.array(probabilities), number)
    assert probabilities[token] > 0
    goal = number * sum(probabilities)
    assert sum(probabilities[:token]) <= goal * (1 + 1e-12)
    assert sum(probabilities[: token + 1]) >= goal * (1 - 1e-12)


def generate(seed, *, num_tokens):
    """A language model of one caller: each row is a function of the tokens before it."""
    params = SamplingParams(temperature=1.0, top_p=0.9, frequency_penalty=0.5).with_seed(seed)
    generated = []
    for position in range(num_tokens):
        row = np.random.default_rng(generated[-3:]).normal(size=VOCABULARY)
        probabilities = distribution(adjust(row, params, generated=generated), params)
        generated.append(draw(probabilities, uniform(params.seed, position, Purpose.TOKEN)))
        yield generated[-1]


def test_a_seed_gives_the_same_text_alone_and_between_others():
    alone = list(generate(5, num_tokens=40))
    beside = [generate(seed, num_tokens=40) for seed in (1, 5, 9)]
    together = list(zip(*beside, strict=True))
    assert [row[1] for row in together] == alone
    assert list(generate(6, num_tokens=40)) != alone


# Log-probabilities


@given(rows, st.integers(0, VOCABULARY - 1), st.integers(0, VOCABULARY + 3))
def test_logprobs_are_log_softmax_of_the_raw_row(row, token, num_best):
    expected = [math.log(probability) for probability in softmax(row)]
    result = top_logprobs(row, token, num_best)
    assert result.logprob == pytest.approx(expected[token])
    best = sorted(range(VOCABULARY), key=lambda other: (-row[other], other))[:num_best]
    assert [listed for listed, _ in result.top] == best
    assert [logprob for _, logprob in result.top] == pytest.approx([expected[t] for t in best])


# Parameters


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("temperature", [-0.1, 2.1, math.nan, math.inf], [0, 2]),
        ("top_p", [-0.1, 1.1, math.nan], [0, 1]),
        ("top_k", [-1], [0, 50]),
        ("min_p", [-0.1, 1.1, math.nan], [0, 1]),
        ("seed", [2**63, -(2**63) - 1], [None, 0, -5, 2**63 - 1]),
        ("presence_penalty", [-2.1, 2.1, math.nan], [-2, 2]),
        ("frequency_penalty", [-2.1, 2.1, math.nan], [-2, 2]),
        ("repetition_penalty", [0, -1, 2.1, math.nan], [0.01, 1, 2]),
        ("min_new_tokens", [-1], [0, 9]),
        ("num_logprobs", [-1, 21], [0, 20]),
        (
            "logit_bias",
            [((1, 101.0),), ((1, -101.0),), ((1, math.nan),), ((-1, 0.0),), ((1, 1.0), (1, 2.0))],
            [(), ((1, 100.0), (2, -100.0))],
        ),
    ],
)
def test_ranges_are_checked_and_the_parameter_is_named(name, refused, accepted):
    for value in refused:
        with pytest.raises(InvalidRequestError, match=name):
            SamplingParams(**{name: value})
    for value in accepted:
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_every_number_has_a_range():
    unchecked = {"ignore_eos"}
    for field in fields(SamplingParams):
        if field.name not in unchecked | {"logit_bias"}:
            with pytest.raises(InvalidRequestError, match=field.name):
                SamplingParams(**{field.name: -(2.0**70)})


def test_bias_of_a_token_that_does_not_exist_is_refused():
    params = SamplingParams(logit_bias=((VOCABULARY, 1.0),))
    params.check_vocabulary(VOCABULARY + 1)
    with pytest.raises(InvalidRequestError, match=r"logit_bias.*12.*11"):
        params.check_vocabulary(VOCABULARY)


def test_a_seed_is_only_filled_in_where_none_was_given():
    assert SamplingParams().with_seed(3).seed == 3
    assert SamplingParams(seed=0).with_seed(3).seed == 0
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy


def test_a_row_of_a_real_vocabulary_is_cheap():
    """Measured 0.2 ms greedy and 0.4 to 2 ms sampling; the bounds leave room for busy machines."""
    row = np.random.default_rng(0).normal(size=49_152).astype(np.float32) * 2.5
    for params, bound_ms in (
        (SamplingParams(), 2),
        (SamplingParams(temperature=0.8, top_p=0.95, top_k=40, min_p=0.05), 10),
        (SamplingParams(temperature=0.8, top_p=0.95), 10),
    ):
        times = []
        for _ in range(20):
            started = time.perf_counter()
            draw(distribution(adjust(row, params), params), 0.5)
            times.append(time.perf_counter() - started)
        assert min(times) * 1000 < bound_ms
