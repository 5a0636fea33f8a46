"""A drafter changes how fast the text comes and never the text; and it drafts as it was trained."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from llm.adapt.data import Batch
from llm.adapt.model import Backbone, Drafter
from llm.adapt.objective import observe
from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine import running
from llm.engine.canvas import Canvas, DraftStep, Prediction, Step
from llm.engine.engine import Engine
from llm.engine.runner_onnx import OnnxRunner
from llm.models.adapted import AdaptedCheckpoint
from llm.models.built import load_built
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import Committed, Finished, Message, Request, Usage
from tests.llm.tiny_adapted import CONFIG, write_tiny_adapted

SPEC = DiffusionSpec(mask_id=3, eos_ids=frozenset({2}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_adapted(tmp_path_factory.mktemp("adapted"), seed=1)


def step_over(tokens: list[int], start: int = 0) -> Step:
    end = start + len(tokens)
    return Step(start, tuple(tokens), tuple(range(start + 1, end + 1)), (len(tokens) - 1,))


def test_it_drafts_what_it_was_trained_to_draft(folder: Path) -> None:
    """The trainer's drafter over whole texts, in torch, against the graph's with its cache."""
    checkpoint = AdaptedCheckpoint(GgufFile(folder / "model.gguf"), folder)
    drafter, backbone = Drafter(checkpoint, CONFIG), Backbone(checkpoint, 0)
    state = {
        name: torch.from_numpy(checkpoint.tensor(f"drafter.{name}", tuple(values.shape)))
        for name, values in drafter.state_dict().items()
        if values.numel()
    }
    drafter.load_state_dict(state, strict=False)
    runner = OnnxRunner(load_built(folder), 128)
    rng, same, total = random.Random(4), 0, 0
    for _ in range(12):
        ids = [rng.randrange(4, 260) for _ in range(rng.choice([5, 16, 40]))]
        batch = Batch(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        anchor = len(ids) - 2
        with torch.no_grad():
            states = observe(backbone, batch, CONFIG.depths).states
            hidden = drafter(states, batch.ids, torch.tensor([[anchor]]))[0, 0]
            expected = (hidden @ drafter.head.T).argmax(-1)
        runner.open(0, 64)
        cut = len(ids) // 2
        for start, end in ((0, cut), (cut, anchor + 1)):
            runner.forward([(0, step_over(ids[start:end], start))])
            behind = tuple(ids[start + 1 : end + 1])
            num_drafts = CONFIG.num_drafts if end == anchor + 1 else 0
            (drafts,) = runner.draft([(0, DraftStep(start, behind, num_drafts))])
        found = [prediction.token for prediction in drafts]
        same += sum(f == CONFIG.token_ids[e] for f, e in zip(found, expected.tolist(), strict=True))
        total += len(found)
        runner.close(0)
    # 8 bits here and bfloat16 there; by chance it would be 1 in 128.
    assert same / total > 0.7


def test_sequences_do_not_disturb_each_other(folder: Path) -> None:
    runner = OnnxRunner(load_built(folder), 128, num_slots=5)
    rng = random.Random(7)
    texts = [[rng.randrange(4, 260) for _ in range(n)] for n in (3, 30, 9, 17, 4)]

    def drafts_of(slots: list[int]) -> list[list[Prediction]]:
        for slot in slots:
            runner.open(slot, 64)
        runner.forward([(slot, step_over(texts[slot][:-1])) for slot in slots])
        found = runner.draft([(s, DraftStep(0, tuple(texts[s][1:]), 1 + s % 4)) for s in slots])
        for slot in slots:
            runner.close(slot)
        return found

    together = drafts_of([0, 1, 2, 3, 4])
    assert [len(drafts) for drafts in together] == [1, 2, 3, 4, 1]
    for slot in range(5):
        assert drafts_of([slot]) == [together[slot]]


@pytest.mark.parametrize("num_slots", [1, 4])
def test_the_text_is_that_without_drafts(
    folder: Path, num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "DRAFTER_GATE", 0.0)
    questions = [f"question {n} of {n % 7}" * (1 + n % 5) for n in range(16)]
    drafted, plain = (answers(folder, questions, num_slots, n) for n in (CONFIG.num_drafts, 0))
    assert [text for text, _ in drafted] == [text for text, _ in plain]
    assert len({text for text, _ in drafted}) > 8
    assert sum(usage.num_drafted for _, usage in drafted) > 200
    assert all(usage.num_drafted == 0 for _, usage in plain)
    for _, usage in drafted:
        counts = usage.accepted_counts
        assert sum(counts) == usage.num_forwards
        assert sum(n * count for n, count in enumerate(counts)) >= usage.num_accepted


def answers(
    folder: Path, questions: list[str], num_slots: int, num_drafts: int
) -> list[tuple[str, Usage]]:
    model = load_built(folder)
    tokenizer = Tokenizer(model.tokenizer)
    config = EngineConfig(num_slots=num_slots, num_draft_tokens=num_drafts)
    runner = OnnxRunner(model, 400, num_slots, num_threads=1)
    engine = Engine(runner, SPEC, tokenizer, ChatTemplate(model.tokenizer.chat_template), config)

    async def ask(question: str) -> tuple[str, Usage]:
        said = ""
        async for event in engine.submit(Request((Message("user", question),), max_new_tokens=20)):
            if isinstance(event, Committed):
                said += event.text
            elif isinstance(event, Finished):
                assert event.error is None
                return said, event.usage
        raise AssertionError("no Finished")

    async def ask_all() -> list[tuple[str, Usage]]:
        return await asyncio.gather(*map(ask, questions))

    try:
        return asyncio.run(ask_all())
    finally:
        engine.close()


def test_a_draft_step_reads_what_was_just_computed() -> None:
    canvas = Canvas(SPEC, [5, 6, 7, 8, 9])
    chunk = canvas.next_step(max_rows=3, num_masks=0)
    canvas.apply(chunk, [], gate=0.5)
    assert canvas.draft_step(chunk, 4) == DraftStep(0, (6, 7, 8), 0)
    last = canvas.next_step(max_rows=3, num_masks=0)
    canvas.apply(last, [Prediction(10, 1.0)], gate=0.5)
    assert canvas.draft_step(last, 4) == DraftStep(3, (9, 10), 4)
    canvas.take_drafts([Prediction(11, 0.9), Prediction(12, 0.2), Prediction(13, 0.9)], gate=0.5)
    assert canvas.drafts == (11,)
    verified = canvas.next_step(max_rows=3, num_masks=0)
    assert verified.tokens == (10, 11)
    canvas.apply(verified, [Prediction(99, 1.0), Prediction(1, 1.0)], gate=0.5)
    assert canvas.draft_step(verified, 4) == DraftStep(5, (99,), 4)


def test_drafts_are_never_masks_nor_what_cannot_be_drafted(folder: Path) -> None:
    runner = OnnxRunner(load_built(folder), 64)
    runner.open(0, 60)
    runner.forward([(0, step_over(list(range(4, 44))))])
    (drafts,) = runner.draft([(0, DraftStep(0, tuple(range(5, 45)), 4))])
    assert {draft.token for draft in drafts} <= set(CONFIG.token_ids)
    assert all(0 < draft.probability <= 1 for draft in drafts)
    assert np.isfinite([draft.probability for draft in drafts]).all()
