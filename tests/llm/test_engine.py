"""The engine's shell: one Finished for every request, aborts, budgets, failures, shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Step
from llm.engine.engine import Engine
from llm.engine.generation import Generation
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
    Priority,
    QueueFullError,
    Request,
    SamplingParams,
)
from tests.llm.tiny import TEMPLATE, write_tiny_gguf

EOS, MASK = 2, 3


class ScriptedRunner:
    """Answers every sequence with the same bytes, then ends; may be held, and may fail."""

    context_length = 268
    num_slots = 3
    num_drafts = 0

    def __init__(self, tokenizer: Tokenizer, answer: str) -> None:
        self.answer = [*tokenizer.encode(answer), EOS]
        self.vocab_size = tokenizer.vocab_size
        self.permits = threading.Semaphore(10_000)
        self.fail = False
        self.full = False
        self.num_forwards = 0
        self.rows: list[list[int]] = []
        self.open_slots: set[int] = set()
        self.caches: list[list[int]] = [[] for _ in range(self.num_slots)]

    def hold(self) -> None:
        """Let no forward through until `go` says how many."""
        while self.permits.acquire(blocking=False):
            pass

    def go(self, num_forwards: int = 10_000) -> None:
        self.permits.release(num_forwards)

    def open(self, slot: int, num_positions: int) -> None:
        assert slot not in self.open_slots
        if self.full:
            raise MemoryError
        self.open_slots.add(slot)

    def close(self, slot: int) -> None:
        self.open_slots.remove(slot)

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        assert self.permits.acquire(timeout=10)
        self.num_forwards += 1
        self.rows.append([len(step.tokens) for _, step in steps])
        if self.fail:
            raise RuntimeError("out of memory")
        return [self._run(self.caches[slot], step) for slot, step in steps]

    def read_pages(self, slot: int, start: int, end: int) -> NDArray[np.float32]:
        return np.array(self.caches[slot][start:end], np.float32).reshape(1, 1, -1, 1)

    def write_pages(self, slot: int, start: int, pages: NDArray[np.float32]) -> None:
        del self.caches[slot][start:]
        self.caches[slot] += pages.ravel().astype(int).tolist()

    def _run(self, cache: list[int], step: Step) -> NDArray[np.float32]:
        assert step.start <= len(cache), "a hole in the cache"
        del cache[step.start :]
        cache += step.tokens
        logits = np.zeros((len(step.wanted), self.vocab_size), np.float32)
        for row, index in enumerate(step.wanted):
            prompt = max((i + len("assistant\n") for i, t in enumerate(cache) if t == 1), default=0)
            at = min(max(0, step.start + index - prompt), len(self.answer) - 1)
            logits[row, self.answer[at]] = 9
        return logits


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
        runner.hold()
        runner.go(2)
        generation = engine.submit(ask(max_new_tokens=200))
        async for event in generation:
            if isinstance(event, Committed) and not generation.aborted:
                generation.abort()
                at_abort = 2
                runner.go()
            if isinstance(event, Finished):
                return event, runner.num_forwards - at_abort
        raise AssertionError("no Finished")

    try:
        finished, more = asyncio.run(main())
    finally:
        engine.close()
    assert finished.reason is FinishReason.CANCELLED
    assert more <= 1, "the forward that was under way, and no other"


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
        runner.hold()
        readers = [asyncio.create_task(collect(engine.submit(ask()))) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.to_thread(engine.close)
        runner.go()
        await closing
        with pytest.raises(QueueFullError):
            engine.submit(ask())
        return await asyncio.gather(*readers)

    assert {f.reason for _, f in asyncio.run(main())} == {FinishReason.CANCELLED}


def test_the_queue_is_bounded(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "a", max_queue=2)

    async def main() -> list[tuple[str, Finished]]:
        runner.hold()
        held: list[Generation] = [engine.submit(ask()) for _ in range(2)]
        with pytest.raises(QueueFullError, match="retry"):
            engine.submit(ask())
        runner.go()
        return [await collect(generation) for generation in held]

    try:
        assert [text for text, _ in asyncio.run(main())] == ["a", "a"]
    finally:
        engine.close()


def test_a_reader_whose_loop_is_gone_is_aborted(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "a" * 200)

    async def leave() -> None:
        runner.hold()
        engine.submit(ask(max_new_tokens=200))

    asyncio.run(leave())
    runner.go()
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


def test_a_next_turn_computes_only_what_is_new(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "fine thanks")
    first = (Message("user", "hello there, how are you today? " * 2),)
    second = (*first, Message("assistant", "fine thanks"), Message("user", "good"))

    async def main() -> list[Finished]:
        return [(await collect(engine.submit(Request(m))))[1] for m in (first, second, second)]

    try:
        one, two, three = (f.usage for f in asyncio.run(main()))
    finally:
        engine.close()
    assert one.num_cached_tokens == 0
    assert two.num_cached_tokens >= one.num_prompt_tokens - 15
    assert three.num_cached_tokens >= two.num_prompt_tokens - 16
    assert two.num_prompt_tokens - two.num_cached_tokens < 45


def test_other_salts_do_not_share(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "x")

    async def main() -> list[Finished]:
        salts = ("a", "b", "a")
        return [(await collect(engine.submit(ask("same " * 9, cache_salt=s))))[1] for s in salts]

    try:
        cached = [f.usage.num_cached_tokens for f in asyncio.run(main())]
    finally:
        engine.close()
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


def test_a_deadline_cuts_the_answer_off(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "a" * 200)
    [(text, finished)] = run(engine, ask(deadline_ms=0.0))
    assert (text, finished.reason) == ("", FinishReason.TIMEOUT)
    assert finished.error


def test_more_callers_than_slots_are_served_in_turn(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "abc")
    results = run(engine, *(ask("q" * n) for n in range(10)))
    assert [text for text, _ in results] == ["abc"] * 10
    assert max(map(len, runner.rows)) == runner.num_slots
    assert not runner.open_slots, "every slot was given back"


def test_a_long_prompt_does_not_stop_who_is_speaking(tokenizer: Tokenizer) -> None:
    engine, runner = make(tokenizer, "b" * 60, num_draft_tokens=0)

    async def main() -> None:
        runner.hold()
        speaking = engine.submit(ask(max_new_tokens=40, priority=Priority.VOICE))
        runner.go(3)
        for _ in range(2):
            await anext(speaking)
        long = engine.submit(ask("long " * 44, max_new_tokens=2))
        runner.go()
        await asyncio.gather(collect(speaking), collect(long))

    try:
        asyncio.run(main())
    finally:
        engine.close()
    mixed = [rows for rows in runner.rows if len(rows) == 2]
    assert mixed, "prompt and decoding shared forwards"
    assert any(max(rows) > 32 for rows in mixed)


def test_seeded_sampling_is_the_same_beside_others(tokenizer: Tokenizer) -> None:
    sampled = ask(max_new_tokens=30, sampling=SamplingParams(temperature=2.0, seed=7))
    engine, _ = make(tokenizer, "some text to wander from")
    [(alone, _)] = run(engine, sampled)
    engine, _ = make(tokenizer, "some text to wander from")
    beside = run(engine, ask("other"), sampled, ask("another", max_new_tokens=9))
    assert beside[1][0] == alone
    assert alone != "some text to wander from"[: len(alone)]


def test_ignore_eos_goes_on_to_the_budget(tokenizer: Tokenizer) -> None:
    engine, _ = make(tokenizer, "ab")
    [(_, finished)] = run(engine, ask(max_new_tokens=20, sampling=SamplingParams(ignore_eos=True)))
    assert finished.reason is FinishReason.LENGTH
    assert finished.usage.num_completion_tokens == 20
