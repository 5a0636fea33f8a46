"""Refined text equals one-token-at-a-time greedy text of the same weights, bit for bit.

The reference knows nothing of canvas and runner: it feeds one token after the other, from the
first token of the prompt on, and takes the best next one.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llm.chat_template import ChatTemplate
from llm.engine.canvas import Canvas, Prediction, Step
from llm.engine.load import spec_for
from llm.engine.runner import Runner
from llm.engine.runner_onnx import OnnxRunner
from llm.engine.runner_torch import TorchRunner
from llm.models.built import calibration_texts, load_built
from llm.models.gguf import GgufFile
from llm.models.smoothing import SmoothedCheckpoint, find_factors
from llm.models.spec import DiffusionSpec
from llm.models.transformer import Transformer
from llm.tokenizer import Tokenizer
from llm.types import Message
from tests.llm.tiny import write_tiny_gguf

NUM_NEW = 12


def best(logits: NDArray[np.float32], mask_id: int) -> list[int]:
    """The best token of each row but the mask."""
    logits[:, mask_id] = -np.inf
    return logits.argmax(axis=1).tolist()


def autoregressive(runner: Runner, prompt: list[int], num_new: int, mask_id: int) -> list[int]:
    """Plain greedy decoding, one token a forward."""
    tokens = list(prompt)
    at = 0
    while len(tokens) < len(prompt) + num_new:
        while at < len(tokens):
            step = Step(start=at, tokens=(tokens[at],), visible=(at + 1,), wanted=(0,))
            (logits,) = runner.forward([(0, step)])
            at += 1
        tokens += best(logits, mask_id)
    return tokens[len(prompt) :]


class Refinement:
    """One sequence, drafted and verified with guesses that are right two times in three.

    Real drafts of a model without a drafting adapter are almost never accepted, which would
    leave the accepting half of the path untried: so the masks' predictions are replaced.
    """

    def __init__(self, spec: DiffusionSpec, prompt: list[int], drafted: list[int]) -> None:
        self.canvas = Canvas(spec, list(prompt))
        self.num_prompt = len(prompt)
        self.drafted = drafted
        self.rng = random.Random(sum(prompt))
        self.accepted = 0

    @property
    def text(self) -> list[int]:
        return self.canvas.clean[self.num_prompt :][: len(self.drafted)]

    @property
    def done(self) -> bool:
        return len(self.canvas.clean) >= self.num_prompt + len(self.drafted)

    def next_step(self, max_rows: int) -> Step:
        return self.canvas.next_step(max_rows=max_rows, num_masks=self.rng.randrange(0, 9))

    def apply(self, step: Step, logits: NDArray[np.float32]) -> None:
        rows = [Prediction(token, 1.0) for token in best(logits, self.canvas.spec.mask_id)]
        num_masks = max(0, len(rows) - 1 - len(self.canvas.drafts))
        behind = len(self.canvas.clean) + len(self.canvas.drafts) + 1 - self.num_prompt
        guesses = self.drafted[behind : behind + num_masks]
        guesses += [5] * (num_masks - len(guesses))
        guesses = [g if self.rng.random() < 2 / 3 else (g + 1) % 50 for g in guesses]
        rows[len(rows) - num_masks :] = [Prediction(g, 1.0) for g in guesses]
        self.accepted += self.canvas.apply(step, rows, gate=0.5).num_accepted


def refine(runner: Runner, sequences: dict[int, Refinement], *, max_rows: int) -> None:
    """Run sequences, by slot, to their ends, those that are not done together in each forward."""
    while running := {slot: s for slot, s in sequences.items() if not s.done}:
        steps = {slot: s.next_step(max_rows) for slot, s in running.items()}
        rows = runner.forward(list(steps.items()))
        for (slot, step), logits in zip(steps.items(), rows, strict=True):
            running[slot].apply(step, logits)


def opened(runner: Runner, num_positions: int = 600) -> Runner:
    for slot in range(runner.num_slots):
        runner.open(slot, num_positions)
    return runner


def runner_for(kind: str, folder: Path, num_slots: int = 1) -> Runner:
    if kind == "torch":
        model = Transformer(GgufFile(folder / "model.gguf"))
        return opened(TorchRunner(model, 600, num_slots))
    return opened(OnnxRunner(load_built(folder), 600, num_slots))


TINY = DiffusionSpec(mask_id=3, eos_ids=frozenset())


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("seed", range(3))
def test_tiny_model(tmp_path: Path, seed: int, kind: str) -> None:
    write_tiny_gguf(tmp_path / "model.gguf", seed=seed)
    runner = runner_for(kind, tmp_path)
    rng = random.Random(seed)
    total = 0
    for length in (1, 2, 7, 8, 9, 60, 505, 511):
        prompt = [rng.randrange(4, 260) for _ in range(length)]
        expected = autoregressive(runner, prompt, 20, TINY.mask_id)
        for max_rows in (256, 5):
            sequence = Refinement(TINY, prompt, expected)
            refine(runner, {0: sequence}, max_rows=max_rows)
            assert sequence.text == expected, f"prompt of {length} tokens"
            total += sequence.accepted
    assert total > 50


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=15)
def test_the_same_text_whatever_runs_beside(tiny: Runner, seed: int) -> None:
    rng = random.Random(seed)
    slots = rng.sample(range(6), rng.randrange(2, 7))
    prompts = {
        slot: [rng.randrange(4, 260) for _ in range(rng.choice([1, 3, 20, 70, 200]))]
        for slot in slots
    }
    expected = {s: autoregressive(tiny, p, rng.randrange(4, 16), 3) for s, p in prompts.items()}
    sequences = {s: Refinement(TINY, p, expected[s]) for s, p in prompts.items()}
    refine(tiny, sequences, max_rows=rng.choice([7, 50, 256]))
    for slot in slots:
        assert sequences[slot].text == expected[slot]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_gguf(folder / "model.gguf", seed=5)
    return opened(OnnxRunner(load_built(folder), 600, num_slots=6))


def test_the_tiny_model_is_not_trivial(tiny: Runner) -> None:
    texts = {tuple(autoregressive(tiny, [5, n], 12, 3)) for n in range(10, 20)}
    assert len(texts) > 5


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_pages_put_back_give_the_same_logits(tmp_path: Path, kind: str) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    runner = runner_for(kind, tmp_path, num_slots=2)
    rng = random.Random(2)
    prompt = tuple(rng.randrange(4, 260) for _ in range(90))
    whole = Step(0, prompt, tuple(range(1, 91)), tuple(range(64, 90)))
    rest = Step(64, prompt[64:], tuple(range(65, 91)), tuple(range(26)))
    (expected,) = runner.forward([(0, whole)])
    pages = [runner.read_pages(0, start, start + 16) for start in range(0, 64, 16)]
    other = tuple(reversed(prompt))
    runner.forward([(1, Step(0, other, tuple(range(1, 91)), ()))])
    for index, page in enumerate(pages):
        runner.write_pages(1, 16 * index, page)
    (found,) = runner.forward([(1, rest)])
    assert np.array_equal(found, expected)


def test_both_runners_agree_on_the_next_token(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    rng = random.Random(1)
    prompt = tuple(rng.randrange(4, 260) for _ in range(80))
    visible = (*range(1, 71), *(80,) * 10)
    step = Step(start=0, tokens=prompt, visible=visible, wanted=tuple(range(80)))
    file = GgufFile(tmp_path / "model.gguf")
    smoothed = SmoothedCheckpoint(file, find_factors(file, calibration_texts(file)))
    torch_runner = opened(TorchRunner(Transformer(smoothed), 600))
    onnx_runner = runner_for("onnx", tmp_path)
    torch_rows, onnx_rows = (
        best(runner.forward([(0, step)])[0], 3) for runner in (torch_runner, onnx_runner)
    )
    # Equal but for the order of float sums, which may tip an 8-bit rounding at a near tie.
    assert sum(a == b for a, b in zip(torch_rows, onnx_rows, strict=True)) >= 76


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
    runner = opened(OnnxRunner(model, 256, num_slots=5), 256)
    accepted = 0
    for five in batched(QUESTIONS, 5):
        prompts = [template.encode((Message("user", q),), tokenizer) for q in five]
        expected = [autoregressive(runner, p, NUM_NEW, spec.mask_id) for p in prompts]
        sequences = {
            slot: Refinement(spec, prompt, text)
            for slot, (prompt, text) in enumerate(zip(prompts, expected, strict=True))
        }
        refine(runner, sequences, max_rows=30)
        for slot, text in enumerate(expected):
            assert tokenizer.decode(sequences[slot].text) == tokenizer.decode(text), five[slot]
            assert sequences[slot].text == text
            accepted += sequences[slot].accepted
    assert len(QUESTIONS) == 50
    assert accepted > 150, "the accepting half of the path was hardly tried"


def batched(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
