"""Block diffusion with a cache: the same tokens in the same order as with none at all."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.config import EngineConfig
from llm.engine.block_canvas import BlockCanvas
from llm.engine.canvas import Prediction, Step
from llm.engine.editing import EditRule
from llm.engine.engine import masks_behind
from llm.engine.guards import Defect, GuardRule
from llm.engine.policy import (
    Credit,
    EntropyBound,
    Factor,
    FixedSteps,
    Hierarchical,
    Policy,
    Threshold,
)
from llm.models.spec import Attention, DiffusionSpec
from tests.llm import slow_reference as slow
from tests.llm.toy_transformer import EOS, MASK, VOCAB, ToyRunner, ToyTransformer

SPEC = DiffusionSpec(
    mask_id=MASK, eos_ids=frozenset({EOS}), logit_shift=0, attention=Attention.BLOCK_CAUSAL
)
POLICIES: list[tuple[Policy, slow.MakePick]] = [
    (Threshold(0.6), slow.threshold(0.6)),
    (Threshold(1.0), slow.threshold(1.0)),
    (Threshold(0.01), slow.threshold(0.01)),
    (Factor(1.0), slow.factor(1.0)),
    (EntropyBound(1.5), slow.entropy_bound(1.5)),
    (Credit(0.8), slow.credit(0.8, 0.7, 0.8, 0.2)),
    (Hierarchical(0.8, 0.4), slow.hierarchical(0.8, 0.4)),
    (FixedSteps(3), slow.fixed_steps(3)),
]
prompts = st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=19)
toy = lru_cache(32)(ToyTransformer)


def state(canvas: BlockCanvas) -> slow.State:
    start, tokens = canvas.block
    return slow.revealed([*canvas.clean[:start], *tokens], MASK)


def drive(
    canvas: BlockCanvas, runner: ToyRunner, num_new: int, max_rows: int = 64, gate: float = 0.5
) -> list[slow.State]:
    """The states that the text goes through until the block of the last token is done."""
    prompt = list(canvas.clean)
    length = len(prompt) + num_new
    end = canvas.block[0]
    while end < length:
        end += canvas.spec.block_length
    room = length + masks_behind(canvas.spec, EngineConfig())
    history = [state(canvas)]
    committed: list[int] = []
    while not canvas.ended and canvas.block[0] < end:
        step = canvas.next_step(max_rows=max_rows, num_masks=3)
        assert len(step.tokens) <= max(max_rows, canvas.spec.block_length)
        if len(canvas.clean) < length:  # an engine ends it then
            assert step.start + len(step.tokens) <= room
        committed += canvas.apply(step, runner(step), gate=gate).committed
        assert canvas.clean == prompt + committed
        assert MASK not in canvas.drafts and EOS not in canvas.drafts
        history.append(state(canvas))
    return history


def changes(history: list[slow.State]) -> list[slow.State]:
    return [key for key, _ in itertools.groupby(history)]


def check_cache(canvas: BlockCanvas, runner: ToyRunner) -> None:
    """What is cached of clean text is what computing it anew gives."""
    n, spec = canvas.num_cached, canvas.spec
    end = max(canvas.block[0], n)
    if not n:
        return
    at = np.arange(end) - canvas._phase
    number = at // spec.block_length
    _, kept = runner.model.whole(canvas.clean[:end], number[None] <= number[:, None])
    np.testing.assert_allclose(runner.cache[:, :, :n], kept[:, :, :n], rtol=1e-9, atol=1e-11)


@given(
    seed=st.integers(0, 31),
    prompt=prompts,
    num_new=st.integers(1, 16),
    block_length=st.integers(1, 9),
    sub_block=st.sampled_from([0, 1, 2, 3]),
    from_prompt_end=st.booleans(),
    shift=st.integers(0, 1),
    policy=st.sampled_from(POLICIES),
    max_rows=st.integers(1, 40),
)
@settings(deadline=None, max_examples=250)
def test_the_same_tokens_in_the_same_order_as_without_a_cache(
    *,
    seed: int,
    prompt: list[int],
    num_new: int,
    block_length: int,
    sub_block: int,
    from_prompt_end: bool,
    shift: int,
    policy: tuple[Policy, slow.MakePick],
    max_rows: int,
) -> None:
    sub_block = min(sub_block, block_length)
    spec = replace(
        SPEC,
        logit_shift=shift,
        block_length=block_length,
        sub_block_length=sub_block,
        blocks_from_prompt_end=from_prompt_end,
    )
    canvas, runner = BlockCanvas(spec, prompt, policy[0]), ToyRunner(toy(seed))
    history = drive(canvas, runner, num_new, max_rows)
    expected = slow.block_diffusion(
        toy(seed).logits,
        prompt,
        num_new,
        block_length=block_length,
        sub_block_length=sub_block,
        from_prompt_end=from_prompt_end,
        shift=shift,
        make_pick=policy[1],
        mask_id=MASK,
        eos=EOS,
    )
    assert changes(history) == changes(expected)
    check_cache(canvas, runner)


@given(
    seed=st.integers(0, 31),
    prompt=prompts,
    num_new=st.integers(1, 12),
    block_length=st.integers(1, 8),
    policy=st.sampled_from(POLICIES),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 0.8]),
    budget=st.integers(0, 12),
    max_rows=st.integers(1, 40),
)
@settings(deadline=None, max_examples=200)
def test_editing_goes_through_the_same_states_as_without_a_cache(
    *,
    seed: int,
    prompt: list[int],
    num_new: int,
    block_length: int,
    policy: tuple[Policy, slow.MakePick],
    threshold: float,
    budget: int,
    max_rows: int,
) -> None:
    spec = replace(SPEC, block_length=block_length)
    rule = EditRule(threshold, budget)
    canvas = BlockCanvas(spec, prompt, policy[0], editing=rule)
    runner = ToyRunner(toy(seed))
    history = drive(canvas, runner, num_new, max_rows)
    expected = slow.edited_block_diffusion(
        toy(seed).logits,
        prompt,
        num_new,
        block_length=block_length,
        make_pick=policy[1],
        edit_threshold=threshold,
        edit_budget=budget,
        mask_id=MASK,
        eos=EOS,
    )
    assert changes(history) == changes(expected)
    check_cache(canvas, runner)


@given(
    seed=st.integers(0, 31),
    prompt=prompts,
    block_length=st.integers(1, 8),
    shift=st.integers(0, 1),
    sub_block=st.sampled_from([0, 2]),
    remask_below=st.sampled_from([0.0, 0.5, 1.0]),
    edit_threshold=st.sampled_from([None, 0.0, 0.4]),
    doubt=st.sampled_from([0.0, 0.4]),
    max_rows=st.integers(1, 40),
)
@settings(deadline=None, max_examples=150)
def test_second_thoughts_end_and_leave_an_exact_cache(
    *,
    seed: int,
    prompt: list[int],
    block_length: int,
    shift: int,
    sub_block: int,
    remask_below: float,
    edit_threshold: float | None,
    doubt: float,
    max_rows: int,
) -> None:
    spec = replace(
        SPEC,
        logit_shift=shift,
        block_length=block_length,
        sub_block_length=min(sub_block, block_length),
    )
    guards = GuardRule(doubt=doubt, repeat_times=2, loop_times=2, loop_length=4, budget=5)
    editing = None if edit_threshold is None else EditRule(edit_threshold, 6, remask_below)
    canvas = BlockCanvas(spec, prompt, Threshold(0.3), editing=editing, guards=guards)
    runner = ToyRunner(toy(seed))
    drive(canvas, runner, 12, max_rows)
    num_blocks = 12 // block_length + 3
    # Each block: its reveals, edits, re-masked tokens one by one, and looks between them.
    each = block_length + 6 + 2 * (block_length + 5) + 3
    assert runner.num_forwards <= num_blocks * each + len(prompt) + 2
    check_cache(canvas, runner)
    assert MASK not in canvas.clean and min(canvas.clean) >= 0
    assert canvas.ended or len(canvas.clean) >= len(prompt) + 12


@given(seed=st.integers(0, 31), prompt=prompts, length=st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_text_is_streamed_up_to_the_first_mask(seed: int, prompt: list[int], length: int) -> None:
    canvas = BlockCanvas(replace(SPEC, block_length=length), prompt, Threshold(0.5))
    runner = ToyRunner(toy(seed))
    while not canvas.ended and len(canvas.clean) < len(prompt) + 12:
        step = canvas.next_step(max_rows=64, num_masks=0)
        canvas.apply(step, runner(step), gate=2.0)
        start, tokens = canvas.block
        stable = list(itertools.takewhile(lambda token: token != MASK, tokens))
        if canvas.ended:
            assert canvas.clean[-1] == EOS
        else:
            assert canvas.clean[start:] == stable
            assert canvas.drafts == (), "a gate above 1 lets no guess pass"


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("num_prompt", [11, 8])
@pytest.mark.parametrize("chunk", [2, 5, 16])
def test_a_restored_cache_gives_the_same_text(shift: int, num_prompt: int, chunk: int) -> None:
    spec = replace(SPEC, block_length=4, logit_shift=shift)
    prompt = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2][:num_prompt]
    whole = BlockCanvas(spec, prompt, Threshold(0.5))
    runner = ToyRunner(toy(3))
    drive(whole, runner, 8)
    again = BlockCanvas(spec, prompt, Threshold(0.5), num_cached=8)
    other = ToyRunner(toy(3))
    other.cache[:, :, :8] = runner.cache[:, :, :8]
    drive(again, other, 8, max_rows=chunk)
    assert again.clean == whole.clean


def answers(canvas: BlockCanvas, step: Step, tokens: dict[int, tuple[int, float]]) -> None:
    """Apply a forward that says `tokens` by position in the text, else token 2 with doubt."""
    shift = canvas.spec.logit_shift
    said = [tokens.get(step.start + row + shift, (2, 0.1)) for row in step.wanted]
    canvas.apply(step, [Prediction(token, p, 1 - p) for token, p in said], gate=0.5)


def test_prompt_blocks_and_first_masks_are_one_staircase() -> None:
    canvas = BlockCanvas(replace(SPEC, block_length=4), [2, 3, 4, 5, 6], Threshold(0.9))
    step = canvas.next_step(max_rows=8, num_masks=0)
    assert step == Step(
        0, (2, 3, 4, 5, 6, MASK, MASK, MASK), (4, 4, 4, 4, 8, 8, 8, 8), wanted=(5, 6, 7)
    )
    answers(canvas, step, {6: (7, 0.95), 5: (8, 0.5), 7: (9, 0.6)})
    assert (canvas.num_cached, canvas.clean) == (4, [2, 3, 4, 5, 6])
    assert canvas.drafts == (8, 7, 9)
    assert canvas.next_step(max_rows=8, num_masks=0) == Step(
        4, (6, MASK, 7, MASK), (8, 8, 8, 8), wanted=(1, 3)
    )


def test_blocks_from_the_end_of_the_prompt() -> None:
    spec = replace(SPEC, block_length=4, blocks_from_prompt_end=True)
    canvas = BlockCanvas(spec, [2, 3, 4, 5, 6], Threshold(0.9))
    step = canvas.next_step(max_rows=99, num_masks=0)
    assert step.visible == (1, 5, 5, 5, 5, 9, 9, 9, 9)


def test_a_long_prompt_comes_in_whole_blocks() -> None:
    canvas = BlockCanvas(replace(SPEC, block_length=4), [2] * 13, Threshold(0.9))
    sizes = []
    for _ in range(3):
        step = canvas.next_step(max_rows=9, num_masks=0)
        sizes.append((step.start, len(step.tokens), len(step.wanted)))
        answers(canvas, step, {})
    assert sizes == [(0, 8, 0), (8, 8, 3), (12, 4, 2)]


def test_commit_and_next_block_are_one_forward() -> None:
    canvas = BlockCanvas(replace(SPEC, block_length=4), [5] * 4, Threshold(0.01))
    for start in (0, 4, 8):
        step = canvas.next_step(max_rows=64, num_masks=0)
        assert (step.start, len(step.tokens), len(step.wanted)) == (start, 8, 4)
        answers(canvas, step, {})
    assert canvas.clean == [5] * 4 + [2] * 12


def test_a_commit_forward_that_is_not_owed_is_left_out() -> None:
    spec = replace(SPEC, block_length=4, commit_forward=False)
    canvas = BlockCanvas(spec, [5] * 4, Threshold(0.01))
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {})
    step = canvas.next_step(max_rows=64, num_masks=0)
    assert (step.start, step.tokens) == (8, (MASK,) * 4)


def test_with_shift_a_block_begins_with_the_commit_forwards_token() -> None:
    spec = replace(SPEC, block_length=4, logit_shift=1)
    canvas = BlockCanvas(spec, [5] * 4, Threshold(0.9))
    step = canvas.next_step(max_rows=64, num_masks=0)
    assert (step.tokens, step.wanted) == ((5,) * 4, (3,))
    answers(canvas, step, {4: (7, 0.1)})
    assert canvas.clean == [5, 5, 5, 5, 7], "however unsure, as one-token decoding does"
    step = canvas.next_step(max_rows=64, num_masks=0)
    assert (step.start, step.tokens, step.wanted) == (4, (7, MASK, MASK, MASK), (0, 1, 2))


def test_text_ends_at_the_first_end_of_text() -> None:
    canvas = BlockCanvas(replace(SPEC, block_length=4), [EOS] * 5, Threshold(0.9))
    step = canvas.next_step(max_rows=64, num_masks=0)
    answers(canvas, step, {6: (EOS, 0.95)})
    assert not canvas.ended, "a mask stands before it, and the prompt's do not count"
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {5: (8, 0.95)})
    assert canvas.ended
    assert canvas.clean == [EOS] * 5 + [8, EOS]
    with pytest.raises(AssertionError, match="nothing follows"):
        canvas.next_step(max_rows=64, num_masks=0)


def test_an_edited_block_is_committed_whole_after_a_look_that_changes_nothing() -> None:
    canvas = BlockCanvas(replace(SPEC, block_length=2), [5, 5], Threshold(0.9), editing=EditRule())
    said: list[dict[int, tuple[int, float]]] = [
        {2: (7, 0.95), 3: (8, 0.95)},
        {2: (9, 0.6), 3: (8, 0.9)},
        {2: (9, 0.9), 3: (4, 0.4)},
    ]
    lengths = []
    for tokens in said:
        answers(canvas, canvas.next_step(max_rows=64, num_masks=0), tokens)
        lengths.append(len(canvas.clean))
    assert (lengths, canvas.clean, canvas.num_edited) == ([2, 2, 4], [5, 5, 9, 8], 1)
    step = canvas.next_step(max_rows=64, num_masks=0)
    assert step.start == 4, "the last look was over clean tokens, so it was the commit forward"


def test_a_doubtful_reveal_is_decoded_once_more_with_its_neighbours_one_by_one() -> None:
    rule = EditRule(threshold=1.0, remask_below=0.5)
    canvas = BlockCanvas(replace(SPEC, block_length=4), [5] * 4, Threshold(0.3), editing=rule)
    first = {4: (6, 0.4), 5: (7, 0.9), 6: (8, 0.9), 7: (9, 0.9)}
    for _ in range(2):
        answers(canvas, canvas.next_step(max_rows=64, num_masks=0), first)
    assert canvas.block == (4, (MASK, MASK, 8, 9))
    assert canvas.num_remasked == 2
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {4: (3, 0.45), 5: (4, 0.4)})
    assert canvas.block == (4, (3, MASK, 8, 9)), "one at a time, although both pass the threshold"
    for _ in range(2):
        answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {5: (4, 0.4)})
    assert canvas.clean == [5, 5, 5, 5, 3, 4, 8, 9], "and only one round"


def test_a_garbled_seam_is_decoded_anew_and_counted() -> None:
    guards = GuardRule(doubt=0.7, budget=1)
    canvas = BlockCanvas(replace(SPEC, block_length=2), [5, 5], Threshold(0.5), guards=guards)
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {2: (7, 0.9), 3: (8, 0.9)})
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {2: (7, 0.9), 3: (9, 0.8)})
    assert (canvas.block, dict(canvas.defects)) == ((2, (7, MASK)), {Defect.SEAM: 1})
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {3: (9, 0.8)})
    answers(canvas, canvas.next_step(max_rows=64, num_masks=0), {2: (3, 0.9), 3: (9, 0.9)})
    assert canvas.clean == [5, 5, 7, 9]
