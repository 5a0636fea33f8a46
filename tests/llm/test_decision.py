"""Probabilities of labels, of every family, equal those of a model that computes all anew."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Step
from llm.engine.decision import END, DecisionError, label_tokens, open_scores
from llm.engine.decoding import read_decoding
from llm.engine.engine import Engine
from llm.engine.runner_onnx import OnnxRunner
from llm.engine.runner_torch import TorchRunner
from llm.models.built import load_built
from llm.models.folder import load_folder
from llm.models.spec import Attention, DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import (
    Committed,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    Request,
)
from tests.llm.slow_model import slow_logits
from tests.llm.tiny_adapted import CONFIG, write_tiny_adapted
from tests.llm.tiny_families import TINY_FAMILIES, write_family
from tests.llm.toy_transformer import EOS, MASK, VOCAB, ToyRunner, ToyTransformer, attend, norm

SPEC = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({EOS}))
PLAIN = read_decoding("threshold=0.9")
Logits = Callable[[list[int], np.ndarray], np.ndarray]
token = st.integers(2, VOCAB - 1)


def sees(spec: DiffusionSpec, num: int, phase: int) -> np.ndarray:
    """Who sees whom; bool [num, num]."""
    if spec.attention is Attention.CAUSAL_VERIFIED:
        return np.tril(np.ones((num, num), bool))
    if spec.attention is Attention.FULL:
        return np.ones((num, num), bool)
    block = (np.arange(num) - phase) // spec.block_length
    return block[None, :] <= block[:, None]


def slow_decision(
    logits: Logits, spec: DiffusionSpec, prompt: list[int], labels: Sequence[tuple[int, ...]]
) -> tuple[list[float], float]:
    """Each label's log-probability token by token, the whole text anew for each."""
    longest = max(map(len, labels))
    totals = []
    for label in labels:
        total = 0.0
        for at, wanted in enumerate(label):
            text = [*prompt, *label[:at]]
            row, tokens, phase = len(text) - 1, text, 0
            if spec.attention is not Attention.CAUSAL_VERIFIED:
                phase = len(text) % spec.block_length if spec.blocks_from_prompt_end else 0
                end = len(prompt) + longest
                if spec.attention is Attention.BLOCK_CAUSAL:
                    end = len(text) + spec.block_length - (len(text) - phase) % spec.block_length
                tokens = text + [spec.mask_id] * (end - len(text))
                row = len(text) - spec.logit_shift
                begins = (len(text) - phase) % spec.block_length == 0
                if spec.attention is Attention.BLOCK_CAUSAL and spec.logit_shift and begins:
                    tokens = text
            scores = logits(tokens, sees(spec, len(tokens), phase))[row].astype(float)
            scores[spec.mask_id] = -math.inf
            odds = np.exp(scores - scores.max())
            odds /= odds.sum()
            total += math.log(sum(odds[i] for i in spec.eos_ids) if wanted == END else odds[wanted])
        totals.append(total)
    mass = sum(map(math.exp, totals))
    return [total - math.log(mass) for total in totals], mass


class ToyLogits(ToyRunner):
    """The toy's logits for the rows wanted, over one cache."""

    def rows(self, step: Step) -> np.ndarray:
        model, end = self.model, step.start + len(step.tokens)
        x = model.token[list(step.tokens)] + model.position[step.start : end]
        for w, (keys, values) in zip(model.weights, self.cache, strict=True):
            h = norm(x)
            keys[step.start : end], values[step.start : end] = h @ w["k"], h @ w["v"]
            attended = [
                attend(row @ w["q"], keys[:seen], values[:seen])
                for row, seen in zip(h, step.visible, strict=True)
            ]
            x = x + np.array(attended) @ w["o"]
            x = x + np.tanh(norm(x) @ w["up"]) @ w["down"]
        assert not np.isnan(x).any(), "a row saw a place in the cache that was never written"
        return norm(x)[list(step.wanted)] @ model.head


def score(
    model: ToyTransformer, prompt: list[int], labels: Sequence[tuple[int, ...]], max_rows: int
) -> tuple[tuple[float, ...], float, int]:
    scores = open_scores(SPEC, prompt, labels, decoding=PLAIN)
    runner = ToyLogits(model)
    forwards = 0
    while not scores.done:
        step = scores.next_step(max_rows=max_rows)
        scores.apply(step, runner.rows(step))
        forwards += 1
    return *scores.normalised(), forwards


def names(labels: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The labels as the engine takes them: END behind all where one begins with another."""
    texts = ["".join(map(chr, label)) for label in labels]
    return label_tokens(texts, lambda text: list(map(ord, text)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 5),
    prompt=st.lists(token, min_size=1, max_size=12),
    labels=st.lists(st.lists(token, min_size=1, max_size=4).map(tuple), min_size=1, unique=True),
    max_rows=st.integers(1, 14),
)
def test_causal_labels_are_scored_exactly(
    seed: int, prompt: list[int], labels: list[tuple[int, ...]], max_rows: int
) -> None:
    model, tokens = ToyTransformer(seed), names(labels)
    logprobs, mass, _ = score(model, prompt, tokens, max_rows)
    expected, expected_mass = slow_decision(model.logits, SPEC, prompt, tokens)
    assert logprobs == pytest.approx(expected, abs=1e-9)
    assert mass == pytest.approx(expected_mass, abs=1e-9)
    assert sum(map(math.exp, logprobs)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("labels", "forwards"),
    [
        ([(2,), (3,), (4,)], 1),  # the prompt's own forward
        ([(2, 3, 4), (5,)], 1),  # one label's tokens ride on it
        ([(2, 3, 4), (2, 3, 5), (2, 6)], 1),  # all on one path
        ([(2, 3), (4, 5), (6, 7)], 3),  # a row for each further start
    ],
)
def test_as_few_forwards_as_possible(labels: list[tuple[int, ...]], forwards: int) -> None:
    assert score(ToyTransformer(0), [5, 6, 7], labels, 256)[2] == forwards


def test_a_label_that_another_begins_with_ends() -> None:
    assert label_tokens(["ab", "cd"], lambda text: list(map(ord, text))) == [(97, 98), (99, 100)]
    assert label_tokens(["ab", "a"], lambda text: list(map(ord, text))) == [
        (97, 98, END),
        (97, END),
    ]


@pytest.mark.parametrize(
    ("labels", "says"), [([], "at least one"), (["a", ""], "empty"), (["a", "b", "a"], "differ")]
)
def test_labels_that_are_none(labels: list[str], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        label_tokens(labels, lambda text: list(map(ord, text)))


class Served:
    """An engine of one family and what it is compared with."""

    def __init__(self, name: str, folder: Path, **changes: Any) -> None:
        weights = write_family(folder, TINY_FAMILIES[name])
        self.model = load_folder(folder, torch.float32)
        spec = self.model.spec
        self.spec = replace(
            spec,
            block_length=min(8, spec.block_length),
            sub_block_length=min(4, spec.sub_block_length),
        )
        self.template = ChatTemplate(self.model.chat_template)
        self.engine = Engine(
            TorchRunner(self.model.backbone, 160, 3),
            self.spec,
            self.model.tokenizer,
            self.template,
            EngineConfig(max_context_tokens=120, **changes),
        )
        self.logits = lambda tokens, mask: slow_logits(
            weights, TINY_FAMILIES[name].shape, tokens, mask
        )

    def expected(self, request: Request, labels: list[str]) -> list[float]:
        prompt = self.template.encode(request.messages, self.model.tokenizer)
        tokens = label_tokens(labels, self.model.tokenizer.encode)
        return slow_decision(self.logits, self.spec, prompt, tokens)[0]


def ask(text: str, **options: Any) -> Request:
    return Request((Message("user", text),), **options)


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_every_family_beside_generations(name: str, tmp_path: Path) -> None:
    served = Served(name, tmp_path)
    rng = random.Random(name)
    words = ["".join(rng.choices("abcdefgh ", k=length)) for length in (1, 5, 17)]
    labels = [["a", "b"], ["yes", "no", "not now"], ["x"]]

    async def main() -> list[tuple[float, ...]]:
        async def decide(word: str, among: list[str]) -> tuple[float, ...]:
            return (await served.engine.decide(ask(word), among)).logprobs

        async def write(word: str) -> str:
            events = served.engine.submit(ask(word, max_new_tokens=6))
            return "".join([e.text async for e in events if isinstance(e, Committed)])

        decided = [decide(w, a) for w, a in zip(words, labels, strict=True)]
        first = await asyncio.gather(*decided, *(write(word) for word in words))
        # Once more, with what the prefix cache kept.
        decided = [decide(w, a) for w, a in zip(words, labels, strict=True)]
        again = await asyncio.gather(*decided, *(write(word) for word in words))
        assert first[3:] == again[3:]
        return [*first[:3], *again[:3]]

    try:
        got = asyncio.run(main())
    finally:
        served.engine.close()
    for index, logprobs in enumerate(got):
        word, among = words[index % 3], labels[index % 3]
        assert logprobs == pytest.approx(served.expected(ask(word), among), abs=2e-3), word


def test_what_cannot_be_decided(tmp_path: Path) -> None:
    served = Served(next(iter(TINY_FAMILIES)), tmp_path)

    async def main() -> None:
        with pytest.raises(InvalidRequestError, match="longest label"):
            await served.engine.decide(ask("Hi"), ["x" * 150])
        with pytest.raises(InvalidRequestError, match="shorten"):
            await served.engine.decide(ask("Hi" * 150), ["x"])
        with pytest.raises(DecisionError) as cut:
            await served.engine.decide(ask("Hi", deadline_ms=0), ["a", "b"])
        assert cut.value.finished.reason is FinishReason.TIMEOUT
        decision = await served.engine.decide(ask("Hi"), ["a", "b"])
        assert decision.best == decision.labels[int(np.argmax(decision.probabilities))]
        assert 0 < decision.mass <= 1
        assert decision.usage.num_forwards == 1

    try:
        asyncio.run(main())
    finally:
        served.engine.close()


def test_a_drafter_reads_the_prompt_of_a_decision(tmp_path: Path) -> None:
    """Pages that a decision leaves behind serve a drafter as well as those of a generation."""
    model = load_built(write_tiny_adapted(tmp_path, seed=1))
    tokenizer, template = Tokenizer(model.tokenizer), ChatTemplate(model.tokenizer.chat_template)
    spec = DiffusionSpec(mask_id=3, eos_ids=frozenset({2}))

    def counts(question: str, *, decide_first: bool) -> tuple[int, ...]:
        runner = OnnxRunner(model, 400, 2, num_threads=1)
        config = EngineConfig(num_draft_tokens=CONFIG.num_drafts)
        engine = Engine(runner, spec, tokenizer, template, config)

        async def main() -> tuple[int, ...]:
            request = ask(question, max_new_tokens=30)
            if decide_first:
                first, again = [await engine.decide(request, ["a", "bc", "de"]) for _ in "12"]
                assert (first.usage.num_cached_tokens, again.usage.num_cached_tokens > 0) == (
                    0,
                    True,
                )
                assert first.logprobs == again.logprobs
            *_, last = [event async for event in engine.submit(request)]
            assert isinstance(last, Finished)
            assert (last.usage.num_cached_tokens > 0) == decide_first
            return last.usage.accepted_counts

        try:
            return asyncio.run(main())
        finally:
            engine.close()

    questions = [f"question {n} of many" * 4 for n in range(4)]
    decided = [counts(question, decide_first=True) for question in questions]
    assert decided == [counts(question, decide_first=False) for question in questions]
    assert len(set(decided)) > 1
