"""Predictions by the request's sampling: drafts change no text, and draws follow the odds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.canvas import Canvas
from llm.engine.picker import Picker, best
from llm.models.spec import DiffusionSpec
from llm.types import SamplingParams

VOCAB, MASK, EOS = 12, 0, 1
SPEC = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({EOS}))


def logits_after(prefix: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(abs(hash(prefix))).normal(0, 1.5, VOCAB).astype(np.float32)


def text(params: SamplingParams, draft_seed: int, num_masks: int, length: int = 12) -> list[int]:
    """Refine with a model whose masks draft at random."""
    prompt = [5, 6]
    canvas, picker = Canvas(SPEC, list(prompt)), Picker(params, prompt, SPEC)
    rng = np.random.default_rng(draft_seed)
    while len(canvas.clean) < 2 + length:
        step = canvas.next_step(max_rows=99, num_masks=num_masks)
        known = [*canvas.clean, *canvas.drafts]
        rows = [
            logits_after(tuple(known[: len(canvas.clean) + i]))
            for i in range(1 + len(canvas.drafts))
        ]
        rows += [rng.normal(0, 9, VOCAB).astype(np.float32) for _ in range(num_masks)]
        predictions = picker.predictions(np.array(rows), canvas.clean[2:], canvas.drafts)
        canvas.apply(step, predictions, gate=0.0)
    return canvas.clean[2 : 2 + length]


parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    min_new_tokens=st.sampled_from([0, 5]),
    seed=st.integers(0, 99),
)


@given(parameters, st.integers(0, 99), st.integers(1, 5))
@settings(deadline=None)
def test_drafts_change_nothing(params: SamplingParams, draft_seed: int, num_masks: int) -> None:
    one_by_one = text(params, 0, 0)
    assert text(params, draft_seed, num_masks) == one_by_one
    assert MASK not in one_by_one
    assert EOS not in one_by_one[: params.min_new_tokens]


def test_draws_follow_the_distribution() -> None:
    row = logits_after((5, 6))
    exact = np.exp(row - row.max())
    exact[MASK] = 0
    exact /= exact.sum()
    num = 4000
    draft = int(exact.argsort()[-2])
    counts = np.zeros(VOCAB)
    for seed in range(num):
        picker = Picker(SamplingParams(temperature=1.0, seed=seed), [5, 6], SPEC)
        rows = np.array([row, row])
        counts[picker.predictions(rows, [], [draft])[0].token] += 1
    seen = exact > 0
    chi_square = ((counts - num * exact)[seen] ** 2 / (num * exact)[seen]).sum()
    # 10 degrees of freedom: above 37.7 once in 24,000 runs, and the seeds are fixed.
    assert chi_square < 37.7


def test_logprobs_are_of_the_tokens_that_stand() -> None:
    params = SamplingParams(num_logprobs=2)
    picker = Picker(params, [5, 6], SPEC)
    rows = np.array([logits_after((n,)) for n in range(3)])
    first = best(rows[:1].copy(), MASK)[0].token
    picker.predictions(rows.copy(), [], [first, 9])
    assert len(picker.logprobs) >= 2
    log_softmax = rows[0] - np.log(np.exp(rows[0]).sum())
    assert picker.logprobs[0].logprob == pytest.approx(log_softmax[first], abs=1e-5)
    assert [token for token, _ in picker.logprobs[0].top] == list(np.argsort(-rows[0])[:2])


def test_best_skips_the_mask_and_knows_its_probability() -> None:
    rows = np.zeros((1, VOCAB), np.float32)
    rows[0, MASK], rows[0, 7] = 50, 2
    (prediction,) = best(rows, MASK)
    assert prediction.token == 7
    assert prediction.probability == pytest.approx(np.exp(2) / (np.exp(2) + VOCAB - 2))
