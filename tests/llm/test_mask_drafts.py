"""Drafting with masks laid out as a model was trained: their words are never kept unverified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.canvas import Step
from llm.engine.canvases import open_canvas
from llm.engine.decoding import read_decoding
from llm.engine.mask_drafts import MaskDrafts
from llm.engine.picker import best
from llm.engine.runner_torch import TorchRunner
from llm.models.folder import load_folder
from llm.models.spec import DiffusionSpec
from tests.llm.slow_model import slow_logits
from tests.llm.test_canvas import MASK, SPEC, FakeForward, greedy
from tests.llm.tiny_families import MASK as TINY_MASK
from tests.llm.tiny_families import TINY_FAMILIES, write_family

CAUSAL = replace(SPEC, masks_causal=True)
OWN_PLACE = replace(SPEC, mask_shift=0)
NUM_MASKS = 5


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SPEC, Step(1, (2, 3, MASK, MASK), (2, 3, 5, 5), (0, 1, 2, 3))),
        (CAUSAL, Step(1, (2, 3, MASK, MASK), (2, 3, 4, 5), (0, 1, 2, 3))),
        (OWN_PLACE, Step(1, (2, 3, MASK, MASK, MASK), (2, 3, 6, 6, 6), (0, 1, 3, 4))),
    ],
)
def test_who_sees_whom_and_who_is_asked(spec: DiffusionSpec, expected: Step) -> None:
    canvas = MaskDrafts(spec, [7, 2], num_cached=1, drafts=(3,))
    assert canvas.next_step(max_rows=8, num_masks=2) == expected


@pytest.mark.parametrize("spec", [SPEC, CAUSAL, OWN_PLACE])
def test_without_masks_there_is_nothing_to_lay_out(spec: DiffusionSpec) -> None:
    canvas = MaskDrafts(spec, [7, 2, 4])
    assert canvas.next_step(max_rows=2, num_masks=3) == Step(0, (7, 2), (1, 2), ())
    assert canvas.next_step(max_rows=8, num_masks=0) == Step(0, (7, 2, 4), (1, 2, 3), (2,))


class OwnPlaceForward(FakeForward):
    """Its masks predict their own place."""

    def draft(self, step: Step, index: int) -> int:
        return super().draft(step, index - 1)


@given(
    prompt=st.lists(st.integers(2, 8), min_size=1, max_size=30),
    luck=st.lists(st.booleans(), max_size=80),
    masks=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    max_rows=st.integers(1, 9),
)
@settings(deadline=None)
def test_committed_text_equals_greedy(
    prompt: list[int], luck: list[bool], masks: list[int], max_rows: int
) -> None:
    canvas, forward = MaskDrafts(OWN_PLACE, list(prompt)), OwnPlaceForward(luck)
    for num_masks in masks:
        step = canvas.next_step(max_rows=max_rows, num_masks=num_masks)
        canvas.apply(step, forward(step), gate=0.1)
        assert canvas.clean == greedy(prompt, len(canvas.clean))


def test_lucky_drafts_commit_whole_blocks() -> None:
    canvas, forward = MaskDrafts(OWN_PLACE, [5]), OwnPlaceForward([True] * 99)
    sizes = []
    for _ in range(3):
        step = canvas.next_step(max_rows=8, num_masks=3)
        sizes.append(len(canvas.apply(step, forward(step), gate=0.5).committed))
    assert sizes == [1, 4, 4]


@pytest.mark.parametrize("name", ["i-dlm", "nemotron_labs_diffusion"])
def test_drafts_are_what_the_published_layout_predicts(name: str, tmp_path: Path) -> None:
    tiny = TINY_FAMILIES[name]
    weights = write_family(tmp_path, tiny)
    model = load_folder(tmp_path, torch.float32)
    prompt = [7, 80, 200, 31, 5, 120, 9, 33, 61]
    decoding = read_decoding("threshold=0.9")
    canvas = open_canvas(model.spec, prompt, max_new_tokens=20, num_cached=0, decoding=decoding)
    runner = TorchRunner(model.backbone, 64)
    runner.open(0, 64)
    step = canvas.next_step(max_rows=64, num_masks=NUM_MASKS)
    (logits,) = runner.forward([(0, step)])
    canvas.apply(step, best(logits, TINY_MASK), gate=0.0)

    tokens = [*prompt, *[TINY_MASK] * (NUM_MASKS + 1)]
    sees = np.tril(np.ones((len(tokens), len(tokens)), bool))
    # I-DLM: all is causal and predicts the next place. Nemotron: masks see each other and predict
    # their own place; text is as before.
    behind = 1
    if name == "nemotron_labs_diffusion":
        sees[len(prompt) :] = True
        behind = 0
    slow = slow_logits(weights, tiny.shape, tokens, sees)
    slow[:, TINY_MASK] = -np.inf
    first = len(prompt) + 1 - behind
    assert canvas.clean == [*prompt, int(slow[len(prompt) - 1].argmax())]
    assert canvas.drafts == tuple(slow[first : first + NUM_MASKS].argmax(axis=1).tolist())
