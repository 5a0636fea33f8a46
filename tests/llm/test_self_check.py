"""The verdict by numbers, and the check on models that know the paragraph if read rightly."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from llm.chat_template import ChatTemplate
from llm.models.folder import LoadedModel, load_folder
from llm.models.gguf import GgufFile
from llm.models.linear import FloatLinear
from llm.models.self_check import (
    PARAGRAPH,
    QUESTION,
    Alternative,
    Cause,
    judge,
    self_check,
)
from llm.models.spec import Attention, DiffusionSpec
from llm.models.transformer import Transformer
from llm.tokenizer import Tokenizer
from tests.llm.tiny_families import MASK, TINY_FAMILIES, write_family

SHIFT = Alternative(Cause.SHIFT, "same", 9.0)
ROTARY = Alternative(Cause.ROTARY, "neighbours", 9.0)
NAN = math.nan


@pytest.mark.parametrize(
    ("loss", "end_loss", "shift", "rotary", "cause"),
    [
        (2.4, 0.6, 11.8, 3.7, None),
        (11.8, 9.0, 2.4, 12.0, Cause.SHIFT),
        (3.7, 0.6, 8.0, 2.4, Cause.ROTARY),
        (2.4, 0.6, 11.8, 1.9, None),
        (8.0, 0.6, 7.5, 7.9, Cause.WEIGHTS),
        (2.4, 5.0, 11.8, 3.7, Cause.TEMPLATE),
        (NAN, NAN, NAN, NAN, Cause.WEIGHTS),
        (2.4, NAN, 11.8, 3.7, Cause.TEMPLATE),
    ],
)
def test_verdict(loss, end_loss, shift, rotary, cause) -> None:
    alternatives = (
        dataclasses.replace(SHIFT, loss=shift),
        dataclasses.replace(ROTARY, loss=rotary),
    )
    verdict = judge(loss, end_loss, alternatives)
    assert verdict.cause is cause
    assert (verdict.warning is None) == (cause is None)


def test_the_warning_says_what_works_better() -> None:
    better = Alternative(Cause.MASK_ID, "7, <|mask|>,", 2.0)
    warning = judge(9.0, 0.5, (SHIFT, better)).warning
    assert warning == "the mask id is likely wrong: 7, <|mask|>, works much better"


class Oracle:
    """A backbone that knows its texts by heart, as long as it is read as it was trained.

    spec: how it was trained. What it returns as hidden states are its logits: sure of the right
    token, or without any idea where what it sees is not what it would see in training.
    """

    def __init__(self, model: LoadedModel, texts: list[list[int]]) -> None:
        self.config = model.backbone.config
        self._pairs = self.config.rotary_pairs
        self._spec = model.spec
        self._texts = texts

    def open_cache(self, capacity: int) -> list[int]:
        return [-1] * capacity

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def forward(self, tokens, start, visible, cache) -> torch.Tensor:
        cache[start : start + len(tokens)] = tokens.tolist()
        rows = torch.zeros(len(tokens), self.config.vocab_size)
        if self.config.rotary_pairs != self._pairs:
            return rows
        for row, sees in enumerate(visible.tolist()):
            position = start + row
            known = cache[:sees]
            if sees == self._should_see(position, len(cache)):
                for text in self._texts:
                    if len(text) >= len(cache) - 1 and self._fits(position, known, text):
                        rows[row, text[position + self._spec.logit_shift]] = 12.0
        return rows

    def _should_see(self, position: int, length: int) -> int:
        block = self._spec.block_length
        return {
            Attention.CAUSAL_VERIFIED: position + 1,
            Attention.BLOCK_CAUSAL: min(length, (position // block + 1) * block),
            Attention.FULL: length,
        }[self._spec.attention]

    def _fits(self, position: int, known: list[int], text: list[int]) -> bool:
        """Whether what is seen is the text; masks only where training has them."""
        if position + self._spec.logit_shift >= len(text):
            return False
        in_block = self._spec.attention is Attention.BLOCK_CAUSAL
        first_mask = position - position % self._spec.block_length if in_block else 0
        if self._spec.attention is Attention.CAUSAL_VERIFIED:
            first_mask = len(known)
        return all(
            token == text[at] or (token == self._spec.mask_id and at >= first_mask)
            for at, token in enumerate(known)
        )


KINDS = ["qwen3", "sdar", "Fast_dLLM_Qwen", "llada", "Dream"]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedModel:
    """A model of each kind whose backbone knows the paragraph, alone and as an answer."""
    write_family(tmp_path, TINY_FAMILIES[request.param])
    loaded = load_folder(tmp_path, torch.float32)
    text = loaded.tokenizer.encode(PARAGRAPH.read_text("utf-8").strip())
    prompt = ChatTemplate(loaded.chat_template).encode((QUESTION,), loaded.tokenizer)
    end = min(loaded.spec.eos_ids)
    oracle = Oracle(loaded, [[*text], [*prompt, *text, end, end]])
    return loaded._replace(backbone=oracle)


def test_read_rightly(model: LoadedModel) -> None:
    verdict = self_check(model)
    assert verdict.warning is None
    assert verdict.loss < 0.1
    assert verdict.end_loss < 0.1


def test_read_with_the_other_shift(model: LoadedModel) -> None:
    spec = dataclasses.replace(model.spec, logit_shift=1 - model.spec.logit_shift)
    verdict = self_check(model._replace(spec=spec))
    assert verdict.cause is Cause.SHIFT
    assert ("next" if model.spec.logit_shift else "same") in verdict.warning


def test_read_in_the_other_rotary_layout(model: LoadedModel) -> None:
    model.backbone.config = dataclasses.replace(model.backbone.config, rotary_pairs=True)
    verdict = self_check(model)
    assert verdict.cause is Cause.ROTARY
    assert "rotating halves" in verdict.warning


def test_read_with_another_mask(model: LoadedModel) -> None:
    other = model.tokenizer.id_of("<|im_start|>")
    verdict = self_check(model._replace(spec=dataclasses.replace(model.spec, mask_id=other)))
    if model.spec.attention is Attention.CAUSAL_VERIFIED:
        assert verdict.warning is None, "clean text has no masks to be wrong"
    else:
        assert verdict.cause is Cause.MASK_ID
        assert f"{MASK}, <|mask|>," in verdict.warning


def test_read_with_another_template(model: LoadedModel) -> None:
    verdict = self_check(model._replace(chat_template="{{ messages[0].content }}"))
    assert verdict.cause is Cause.TEMPLATE


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_random_weights_know_no_english(name: str, tmp_path: Path) -> None:
    write_family(tmp_path, TINY_FAMILIES[name])
    verdict = self_check(load_folder(tmp_path, torch.float32))
    assert math.isfinite(verdict.loss)
    assert verdict.cause is not None


@pytest.mark.models
def test_the_embedded_model(llm_folder: Path) -> None:
    file = GgufFile(llm_folder / "model.gguf")
    tokenizer = Tokenizer(file.tokenizer)
    spec = DiffusionSpec(tokenizer.id_of("<empty_output>"), frozenset({file.tokenizer.eos_id}))
    backbone = Transformer(file, FloatLinear)
    model = LoadedModel(backbone, spec, tokenizer, file.tokenizer.chat_template)
    verdict = self_check(model)
    assert verdict.warning is None
    assert 2 < verdict.loss < 3
    shifted = model._replace(spec=dataclasses.replace(spec, logit_shift=0))
    assert self_check(shifted).cause is Cause.SHIFT
    bare = model._replace(chat_template="{{ messages[0].content }} ")
    assert self_check(bare).cause is Cause.TEMPLATE
    backbone.config = dataclasses.replace(backbone.config, rotary_pairs=True)
    assert self_check(model).cause is Cause.ROTARY
