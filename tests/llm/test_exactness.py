"""Refined text equals one-token-at-a-time greedy text of the same weights, bit for bit.

The reference knows nothing of canvas and runner: it feeds one token after the other, from the
first token of the prompt on, and takes the best next one.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from llm.chat_template import ChatTemplate
from llm.engine.canvas import Canvas, Prediction, Step
from llm.engine.load import spec_for
from llm.engine.runner import Runner
from llm.engine.runner_onnx import OnnxRunner
from llm.engine.runner_torch import TorchRunner
from llm.models.built import load_built
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.models.transformer import Transformer
from llm.tokenizer import Tokenizer
from llm.types import Message
from tests.llm.tiny import write_tiny_gguf

NUM_NEW = 12


def autoregressive(runner: Runner, prompt: list[int], num_new: int) -> list[int]:
    """Plain greedy decoding, one token a forward."""
    cache = runner.open_cache(len(prompt) + num_new)
    tokens = list(prompt)
    at = 0
    while len(tokens) < len(prompt) + num_new:
        while at < len(tokens):
            step = Step(start=at, tokens=(tokens[at],), num_causal=1, num_predicted=1)
            ((best,),) = runner.forward([(cache, step)])
            at += 1
        tokens.append(best.token)
    return tokens[len(prompt) :]


def refine(
    runner: Runner, spec: DiffusionSpec, prompt: list[int], drafted: list[int], *, max_rows: int
) -> tuple[list[int], int]:
    """Draft and verify with guesses that are right two times in three. Returns text, accepted.

    Real drafts of a model without a drafting adapter are almost never accepted, which would
    leave the accepting half of the path untried: so the masks' predictions are replaced.
    """
    rng = random.Random(sum(prompt))
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


def runners(folder: Path, spec: DiffusionSpec) -> dict[str, Runner]:
    """Both ways of running the checkpoint in `folder`."""
    return {
        "torch": TorchRunner(Transformer(GgufFile(folder / "model.gguf")), spec),
        "onnx": OnnxRunner(load_built(folder), spec),
    }


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("seed", range(3))
def test_tiny_model(tmp_path: Path, seed: int, kind: str) -> None:
    write_tiny_gguf(tmp_path / "model.gguf", seed=seed)
    spec = DiffusionSpec(mask_id=3, eos_ids=frozenset())
    runner = runners(tmp_path, spec)[kind]
    rng = random.Random(seed)
    total = 0
    for length in (1, 2, 7, 8, 9, 60, 505, 511):
        prompt = [rng.randrange(4, 260) for _ in range(length)]
        expected = autoregressive(runner, prompt, 20)
        for max_rows in (256, 5):
            text, accepted = refine(runner, spec, prompt, expected, max_rows=max_rows)
            assert text == expected, f"prompt of {length} tokens"
            total += accepted
    assert total > 50


def test_the_tiny_model_is_not_trivial(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    runner = OnnxRunner(load_built(tmp_path), DiffusionSpec(mask_id=3, eos_ids=frozenset()))
    texts = {tuple(autoregressive(runner, [5, n], 12)) for n in range(10, 20)}
    assert len(texts) > 5


def test_both_runners_agree_on_the_next_token(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    spec = DiffusionSpec(mask_id=3, eos_ids=frozenset())
    prompt = tuple(random.Random(1).randrange(4, 260) for _ in range(80))
    step = Step(start=0, tokens=prompt, num_causal=70, num_predicted=80)
    torch_rows, onnx_rows = (
        runner.forward([(runner.open_cache(80), step)])[0]
        for runner in runners(tmp_path, spec).values()
    )
    agreeing = sum(a.token == b.token for a, b in zip(torch_rows, onnx_rows, strict=True))
    # Equal but for the order of float sums, which may tip an 8-bit rounding at a near tie.
    assert agreeing >= 76
    differences = [
        abs(a.probability - b.probability)
        for a, b in zip(torch_rows, onnx_rows, strict=True)
        if a.token == b.token
    ]
    assert max(differences) < 0.1


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
    model = load_built(llm_folder)
    tokenizer = Tokenizer(model.tokenizer)
    template = ChatTemplate(model.tokenizer.chat_template)
    spec = spec_for(model.tokenizer, tokenizer)
    runner = OnnxRunner(model, spec)
    accepted = 0
    for question in QUESTIONS:
        prompt = template.encode((Message("user", question),), tokenizer)
        expected = autoregressive(runner, prompt, NUM_NEW)
        text, kept = refine(runner, spec, prompt, expected, max_rows=256)
        assert tokenizer.decode(text) == tokenizer.decode(expected), question
        assert text == expected
        accepted += kept
    assert len(QUESTIONS) == 50
    assert accepted > 150, "the accepting half of the path was hardly tried"
