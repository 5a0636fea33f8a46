"""The engine's shell: one Finished for every request, aborts, budgets, failures, shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Prediction, Step
from llm.engine.engine import Engine, Generation
from llm.models.gguf import GgufFile
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import (
    Committed,
    Event,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    QueueFullError,
    Request,
)
from tests.llm.tiny import TEMPLATE, write_tiny_gguf

EOS, MASK = 2, 3


class ScriptedRunner:
    """Answers every sequence with the same bytes, then ends; may be held, and may fail."""

    context_length = 256

    def __init__(self, tokenizer: Tokenizer, answer: str) -> None:
        self.answer = [*tokenizer.encode(answer), EOS]
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fail = False
        self.num_forwards = 0

    def open_cache(self, capacity: int) -> list[int]:
        return []

    def forward(self, steps: Sequence[tuple[Any, Step]]) -> list[list[Prediction]]:
        self.entered.set()
        assert self.gate.wait(10)
        self.num_forwards += 1
        if self.fail:
            raise RuntimeError("out of memory")
        return [self._row(cache, step) for cache, step in steps]

    def _row(self, cache: list[int], step: Step) -> list[Prediction]:
        del cache[step.start :]
        cache += step.tokens
        rows = range(len(step.tokens) - step.num_predicted, len(step.tokens))
        out = []
        for row in rows:
            prompt = max(i for i, t in enumerate(cache) if t == 1) + len("assistant\n")
            at = min(max(0, step.start + row - prompt), len(self.answer) - 1)
            out.append(Prediction(self.answer[at], 0.9))
        return out


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("engine") / "m.gguf"
    return Tokenizer(GgufFile(write_tiny_gguf(path)).tokenizer)


def make(tokenizer: Tokenizer, answer: str, **config: int) -> tuple[Engine, ScriptedRunner]:
    runner = ScriptedRunner(tokenizer, answer)
    spec = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({EOS}))
    engine = Engine(runner, spec, tokenizer, ChatTemplate(TEMPLATE), EngineConfig(**config))
    return engine, runner


def ask(text: str = "hi", **options: Any) -> Request:
    return Request((Message("user", text),), **options)


async def collect(events: AsyncIterator[Event]) -> tuple[str, Finished]:
    text, finished = "", []
    async for event in events:
        if isinstance(event, Committed):
            text += event.text
        elif isinstance(event, Finished):
            finished.append(event)
    (last,) = finished
    return text, last


def run(engine: Engine, *requests: Request) -> list[tuple[str, Finished]]:
    async def main() -> list[tuple[str, Finished]]:
        return await asyncio.gather(*(collect(engine.submit(r)) for r in requests))

    try:
        return asyncio.run(main())
    finally:
        engine.close()


def test_text_ends_where_the_model_ends_it(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "hello wörld")
    [(text, finished)] = run(engine, ask())
    assert (text, finished.reason) == ("hello wörld", FinishReason.STOP)
    assert finished.usage.num_completion_tokens == len(tokenizer.encode("hello wörld"))
    assert finished.usage.first_commit_ms is not None
    assert finished.usage.first_commit_ms <= finished.usage.total_ms


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
def test_budget_is_kept_although_blocks_are_committed(tokenizer: Tokenizer, budget: int) -> None:
    engine, _ = make(tokenizer, "1234567890")
    [(text, finished)] = run(engine, ask(max_new_tokens=budget))
    assert (text, finished.reason) == ("1234567890"[:budget], FinishReason.LENGTH)
    assert finished.usage.num_completion_tokens == budget


def test_stop_string_ends_the_text_and_is_left_out(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "one two three")
    [(text, finished)] = run(engine, ask(stop=("o th",)))
    assert (text, finished.reason) == ("one tw", FinishReason.STOP)


def test_good_drafts_save_forwards(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "0123456789" * 4, num_draft_tokens=3)
    [(_, finished)] = run(engine, ask())
    assert finished.usage.tokens_per_forward > 3
    assert finished.usage.num_accepted > 20


def test_many_callers_get_their_own_text(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "same words for all")
    results = run(engine, *(ask("x" * n) for n in range(12)))
    assert {(text, f.reason) for text, f in results} == {("same words for all", FinishReason.STOP)}


def test_abort_ends_at_the_next_step(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "a" * 200)

    async def main() -> tuple[Finished, int]:
        generation = engine.submit(ask(max_new_tokens=200))
        async for event in generation:
            if isinstance(event, Committed):
                runner.gate.clear()
                generation.abort()
                at_abort = runner.num_forwards
                runner.gate.set()
            if isinstance(event, Finished):
                return event, runner.num_forwards - at_abort
        raise AssertionError("no Finished")

    try:
        finished, more = asyncio.run(main())
    finally:
        engine.close()
    assert finished.reason is FinishReason.CANCELLED
    assert more <= 2


def test_a_failed_forward_ends_its_requests_and_not_the_engine(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    engine, runner = make(tokenizer, "fine")

    async def main() -> tuple[tuple[str, Finished], tuple[str, Finished]]:
        runner.fail = True
        first = await collect(engine.submit(ask()))
        runner.fail = False
        return first, await collect(engine.submit(ask()))

    try:
        first, second = asyncio.run(main())
    finally:
        engine.close()
    assert first[1].reason is FinishReason.ERROR
    assert first[1].error
    assert second[0] == "fine"
    assert "a forward failed" in caplog.text


def test_close_finishes_everything(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "a" * 200)

    async def main() -> list[tuple[str, Finished]]:
        runner.gate.clear()
        readers = [asyncio.create_task(collect(engine.submit(ask()))) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.to_thread(engine.close)
        runner.gate.set()
        await closing
        with pytest.raises(QueueFullError):
            engine.submit(ask())
        return await asyncio.gather(*readers)

    assert {f.reason for _, f in asyncio.run(main())} == {FinishReason.CANCELLED}


def test_the_queue_is_bounded(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "a", max_queue=2)

    async def main() -> list[tuple[str, Finished]]:
        runner.gate.clear()
        held: list[Generation] = [engine.submit(ask()) for _ in range(2)]
        with pytest.raises(QueueFullError, match="retry"):
            engine.submit(ask())
        runner.gate.set()
        return [await collect(generation) for generation in held]

    try:
        assert [text for text, _ in asyncio.run(main())] == ["a", "a"]
    finally:
        engine.close()


def test_a_reader_whose_loop_is_gone_is_aborted(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "a" * 200)

    async def leave() -> None:
        runner.gate.clear()
        engine.submit(ask(max_new_tokens=200))

    asyncio.run(leave())
    runner.gate.set()
    [(text, _)] = run(engine, ask(max_new_tokens=5))
    assert text == "aaaaa"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request((), max_new_tokens=4), "at least one message"),
        (ask(max_new_tokens=0), "1 or more"),
        (ask(stop=("",)), "empty"),
        (ask("long " * 300), "only 256 fit"),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    tokenizer: Tokenizer, request_: Request, words: str
) -> None:
    engine, _ = make(tokenizer, "x")

    async def main() -> None:
        with pytest.raises(InvalidRequestError, match=words):
            engine.submit(request_)

    try:
        asyncio.run(main())
    finally:
        engine.close()


def test_the_context_limit_ends_the_answer(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "z" * 300)
    [(text, finished)] = run(engine, ask("y" * 200, max_new_tokens=500))
    assert finished.reason is FinishReason.LENGTH
    assert finished.usage.num_prompt_tokens + len(text) == 256
