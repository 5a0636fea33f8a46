"""Refined text equals one-token-at-a-time greedy text of the same weights, bit for bit.

The reference knows nothing of canvas and runner: it feeds one token after the other, from the
first token of the prompt on, and takes the best next one.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from llm.chat_template import ChatTemplate
from llm.engine.canvas import Canvas, Prediction
from llm.engine.runner_torch import TorchRunner
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.models.transformer import KVCache, Transformer
from llm.tokenizer import Tokenizer
from llm.types import Message
from tests.llm.tiny import write_tiny_gguf

NUM_NEW = 16


@torch.inference_mode()
def autoregressive(model: Transformer, prompt: list[int], mask_id: int, num_new: int) -> list[int]:
    """Plain greedy decoding, one row a forward."""
    cache = KVCache(model.config, len(prompt) + num_new)
    tokens = list(prompt)
    at = 0
    while len(tokens) < len(prompt) + num_new:
        while at < len(tokens):
            hidden = model.forward(torch.tensor([tokens[at]]), at, torch.tensor([at + 1]), cache)
            at += 1
        logits = model.logits(hidden)[0]
        logits[mask_id] = float("-inf")
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def refine(
    runner: TorchRunner,
    spec: DiffusionSpec,
    prompt: list[int],
    drafted: list[int],
    seed: int,
    max_rows: int = 256,
) -> tuple[list[int], int]:
    """Draft and verify with guesses that are right two times in three. Returns text, accepted.

    Real drafts of a model without a drafting adapter are almost never accepted, which would
    leave the accepting half of the path untried: so the masks' predictions are replaced.
    """
    rng = random.Random(seed)
    canvas = Canvas(spec, list(prompt))
    cache = runner.open_cache(len(prompt) + len(drafted) + 32)
    accepted = 0
    while len(canvas.clean) < len(prompt) + len(drafted):
        step = canvas.next_step(max_rows=max_rows, num_masks=rng.randrange(0, 9))
        rows = runner.forward([(cache, step)])[0]
        num_masks = len(step.tokens) - step.num_causal
        behind = len(canvas.clean) + len(canvas.drafts) + 1 - len(prompt)
        guesses = drafted[behind : behind + num_masks]
        guesses += [5] * (num_masks - len(guesses))
        guesses = [g if rng.random() < 2 / 3 else (g + 1) % 50 for g in guesses]
        rows[len(rows) - num_masks :] = [Prediction(g, 1.0) for g in guesses]
        accepted += canvas.apply(step, rows, gate=0.5).num_accepted
    return canvas.clean[len(prompt) :][: len(drafted)], accepted


@pytest.mark.parametrize("seed", range(6))
def test_tiny_model(tmp_path: Path, seed: int) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", seed=seed))
    model = Transformer(file)
    spec = DiffusionSpec(mask_id=3, eos_ids=frozenset())
    runner = TorchRunner(model, spec)
    rng = random.Random(seed)
    total = 0
    for length in (1, 2, 7, 8, 9, 60, 505, 511):
        prompt = [rng.randrange(4, 260) for _ in range(length)]
        expected = autoregressive(model, prompt, spec.mask_id, 20)
        for max_rows in (256, 5):
            text, accepted = refine(runner, spec, prompt, expected, seed, max_rows)
            assert text == expected, f"prompt of {length} tokens"
            total += accepted
    assert total > 50


def test_the_tiny_model_is_not_trivial(tmp_path: Path) -> None:
    model = Transformer(GgufFile(write_tiny_gguf(tmp_path / "m.gguf")))
    texts = {tuple(autoregressive(model, [5, n], 3, 12)) for n in range(10, 20)}
    assert len(texts) > 5


QUESTIONS = [
    f"{start} {topic}{end}"
    for (start, end), topic in itertools.product(
        [
            ("What is", "?"),
            ("Tell me about", "."),
            ("In one sentence, describe", ""),
            ("why do people like", "?"),
            ("How would you explain", " to a child?"),
        ],
        [
            "the moon", "bread", "a violin", "the number 42", "rain",
            "São Paulo", "gravity", "a haiku", "2 + 2", "winter",
        ],
    )
]  # fmt: skip


@pytest.mark.models
def test_the_embedded_model_on_fifty_prompts(llm_folder: Path) -> None:
    file = GgufFile(llm_folder / "model.gguf")
    tokenizer, model = Tokenizer(file.tokenizer), Transformer(file)
    template = ChatTemplate(file.tokenizer.chat_template)
    spec = DiffusionSpec(mask_id=tokenizer.id_of("<empty_output>"), eos_ids=frozenset())
    runner = TorchRunner(model, spec)
    accepted = 0
    for seed, question in enumerate(QUESTIONS):
        prompt = template.encode((Message("user", question),), tokenizer)
        expected = autoregressive(model, prompt, spec.mask_id, NUM_NEW)
        text, kept = refine(runner, spec, prompt, expected, seed)
        assert tokenizer.decode(text) == tokenizer.decode(expected), question
        assert text == expected
        accepted += kept
    assert len(QUESTIONS) == 50
    assert accepted > 200, "the accepting half of the path was hardly tried"
