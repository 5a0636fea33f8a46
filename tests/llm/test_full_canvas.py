"""Full-attention diffusion: the tokens and their order are those of a plain recomputation."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.canvas import Prediction
from llm.engine.canvases import open_canvas
from llm.engine.decoding import read_decoding
from llm.engine.full_canvas import FullCanvas, Reuse
from llm.engine.policy import EntropyBound, Factor, FixedSteps, Policy, Threshold
from llm.models.spec import Attention, DiffusionSpec
from tests.llm import slow_reference as slow
from tests.llm.toy_transformer import EOS, LAYERS, MASK, VOCAB, ToyRunner, ToyTransformer

SPEC = DiffusionSpec(
    mask_id=MASK, eos_ids=frozenset({EOS}), logit_shift=0, attention=Attention.FULL
)
POLICIES: list[tuple[Policy, slow.MakePick]] = [
    (Threshold(0.6), slow.threshold(0.6)),
    (Threshold(1.0), slow.threshold(1.0)),
    (Factor(1.0), slow.factor(1.0)),
    (EntropyBound(1.5), slow.entropy_bound(1.5)),
    (FixedSteps(3), slow.fixed_steps(3)),
]
toy = lru_cache(32)(ToyTransformer)


def drive(canvas: FullCanvas, runner: ToyRunner) -> list[slow.State]:
    history = []
    prompt = list(canvas.clean)
    committed: list[int] = []
    while True:
        start, tokens = canvas.block
        history.append(slow.revealed([*canvas.clean[:start], *tokens], MASK))
        if canvas.ended:
            return history
        step = canvas.next_step(max_rows=4, num_masks=3)
        committed += canvas.apply(step, runner(step), gate=0.5).committed
        assert canvas.clean == prompt + committed
        assert MASK not in canvas.drafts and EOS not in canvas.drafts


@given(
    seed=st.integers(0, 31),
    prompt=st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=12),
    num_new=st.integers(1, 16),
    block_length=st.integers(1, 17),
    shift=st.integers(0, 1),
    policy=st.sampled_from(POLICIES),
    reuse=st.sampled_from(Reuse),
    interval=st.integers(0, 3),
)
@settings(deadline=None, max_examples=250)
def test_the_same_tokens_in_the_same_order_as_the_published_algorithm(
    *,
    seed: int,
    prompt: list[int],
    num_new: int,
    block_length: int,
    shift: int,
    policy: tuple[Policy, slow.MakePick],
    reuse: Reuse,
    interval: int,
) -> None:
    spec = replace(SPEC, block_length=block_length, logit_shift=shift)
    canvas = FullCanvas(spec, prompt, num_new, policy[0], reuse=reuse, refresh_interval=interval)
    model = toy(seed)
    if reuse is Reuse.EXACT:
        expected = slow.full_diffusion(
            model.logits,
            prompt,
            num_new,
            block_length=block_length,
            shift=shift,
            make_pick=policy[1],
            mask_id=MASK,
            eos=EOS,
        )
    else:
        expected = slow.cached_full_diffusion(
            model.among,
            LAYERS,
            prompt,
            num_new,
            dual=reuse is Reuse.DUAL,
            refresh_interval=interval,
            block_length=block_length,
            shift=shift,
            make_pick=policy[1],
            mask_id=MASK,
            eos=EOS,
        )
    assert drive(canvas, ToyRunner(model)) == expected


@pytest.mark.parametrize(
    ("reuse", "shift", "rows"),
    [
        (Reuse.EXACT, 0, [(0, 12), (0, 12), (0, 12)]),
        (Reuse.PREFIX, 0, [(0, 12), (4, 12), (0, 12)]),
        (Reuse.PREFIX, 1, [(0, 12), (3, 12), (0, 12)]),
        (Reuse.DUAL, 0, [(0, 12), (4, 8), (0, 12)]),
        (Reuse.DUAL, 1, [(0, 12), (3, 8), (0, 12)]),
    ],
)
def test_only_what_is_not_reused_is_computed(
    reuse: Reuse, shift: int, rows: list[tuple[int, int]]
) -> None:
    spec = replace(SPEC, block_length=4, logit_shift=shift)
    canvas = FullCanvas(spec, [5] * 4, 8, FixedSteps(2), reuse=reuse)
    computed = []
    for _ in range(3):
        num_rows = canvas.num_rows
        step = canvas.next_step(max_rows=0, num_masks=0)
        assert len(step.tokens) == num_rows
        computed.append((step.start, step.start + len(step.tokens)))
        assert set(step.visible) == {12}
        canvas.apply(step, [Prediction(3, 0.5)] * len(step.wanted), gate=1.0)
    assert computed == rows


def test_the_approximate_caches_are_not_exact() -> None:
    """Else the exact mode would have no reason to be."""
    texts = []
    for reuse in Reuse:
        canvas = FullCanvas(
            replace(SPEC, block_length=8), [5, 6, 7], 24, Threshold(1.0), reuse=reuse
        )
        drive(canvas, ToyRunner(toy(10)))
        texts.append(tuple(canvas.clean))
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("setting", "reuse", "interval"),
    [("", Reuse.EXACT, 0), ("reuse=prefix", Reuse.PREFIX, 0), ("reuse=dual:2", Reuse.DUAL, 2)],
)
def test_the_setting_says_what_is_reused(setting: str, reuse: Reuse, interval: int) -> None:
    spec = replace(SPEC, block_length=8)
    decoding = read_decoding(f"threshold=0.999 {setting}")
    canvas = open_canvas(spec, [5, 6, 7], max_new_tokens=24, num_cached=0, decoding=decoding)
    assert isinstance(canvas, FullCanvas)
    policy = Threshold(0.999)
    same = FullCanvas(spec, [5, 6, 7], 24, policy, reuse=reuse, refresh_interval=interval)
    rows = [ToyRunner(toy(10)), ToyRunner(toy(10))]
    assert drive(canvas, rows[0]) == drive(same, rows[1])


def test_text_ends_at_the_first_end_of_text_and_is_streamed() -> None:
    canvas = FullCanvas(replace(SPEC, block_length=4), [EOS, 5], 8, Threshold(0.9))
    said = [
        [(3, 0.95), (4, 0.2), (EOS, 0.95), (6, 0.6)],
        [(4, 0.95), (6, 0.6)],
    ]
    seen = []
    for row in said:
        step = canvas.next_step(max_rows=0, num_masks=0)
        canvas.apply(step, [Prediction(token, p) for token, p in row], gate=0.1)
        seen.append((list(canvas.clean), canvas.drafts, canvas.ended))
    assert seen == [([EOS, 5, 3], (4,), False), ([EOS, 5, 3, 4, EOS], (), True)]
    with pytest.raises(AssertionError, match="nothing follows"):
        canvas.next_step(max_rows=0, num_masks=0)
