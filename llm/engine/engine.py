"""The engine: requests in, streams of text events out; one worker thread runs every forward.

One step takes one forward for every running request, so a new caller waits for one step and not
for an answer. This file is the shell (thread, queues, clock); what to compute and what to commit
is decided in `canvas`, what to say in `text_stream`, how a forward runs in the runner.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.canvas import Canvas
from llm.engine.runner import Runner
from llm.engine.text_stream import TextStream
from llm.models.spec import DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import (
    Event,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    QueueFullError,
    Request,
    Usage,
)

DRAFT_GATE = 0.4
"""Drafts less probable than this are not carried into the next forward."""

PREFILL_ROWS = 256
"""Prompt tokens of one step: more would keep the other requests of the step waiting."""

_log = logging.getLogger(__name__)


class Generation(AsyncIterator[Event]):
    """The events of one request, ending after exactly one `Finished`. For one reader."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._done = False
        self._aborted = threading.Event()

    def abort(self) -> None:
        """Ask the engine to stop at its next step; `Finished(CANCELLED)` still comes."""
        self._aborted.set()

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted.is_set()

    async def __anext__(self) -> Event:
        """The next event; StopAsyncIteration after `Finished`."""
        if self._done:
            raise StopAsyncIteration
        event = await self._events.get()
        self._done = isinstance(event, Finished)
        return event

    def put(self, event: Event) -> None:
        """Called by the worker thread. A reader whose loop is gone has gone away: abort."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            self.abort()


class _Running:
    """A request in progress: canvas, text and counts. Used by the worker thread only."""

    def __init__(
        self, generation: Generation, canvas: Canvas, text: TextStream, cache: Any, max_new: int
    ) -> None:
        self.generation = generation
        self.canvas = canvas
        self.text = text
        self.cache = cache
        self.num_prompt = len(canvas.clean)
        self.max_new = max_new
        self.num_new = self.num_forwards = self.num_drafted = self.num_accepted = 0
        self.started = time.perf_counter()
        self.first_commit_ms: float | None = None

    def usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self.num_prompt,
            num_completion_tokens=self.num_new,
            num_forwards=self.num_forwards,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            first_commit_ms=self.first_commit_ms,
            total_ms=(time.perf_counter() - self.started) * 1000,
        )


class Engine:
    """Serves generations of one model from one worker thread."""

    def __init__(
        self,
        runner: Runner,
        spec: DiffusionSpec,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        config: EngineConfig,
    ) -> None:
        self._runner = runner
        self._spec = spec
        self._tokenizer = tokenizer
        self._template = template
        self._config = config
        self.context_length = min(runner.context_length, config.max_context_tokens)
        self._waiting: deque[tuple[Generation, Request, list[int]]] = deque()
        self._running: list[_Running] = []
        self._changed = threading.Condition()
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="ember-engine", daemon=True)
        self._worker.start()

    def submit(self, request: Request) -> Generation:
        """Admit a request; called from the event loop that reads the generation.

        Raises InvalidRequestError where it can never run and QueueFullError where not now.
        """
        if request.max_new_tokens < 1:
            raise InvalidRequestError("max_new_tokens must be 1 or more")
        if any(not stop for stop in request.stop):
            raise InvalidRequestError("a stop string must not be empty")
        prompt = self._template.encode(request.messages, self._tokenizer)
        if len(prompt) >= self.context_length:
            raise InvalidRequestError(
                f"the conversation has {len(prompt)} tokens, but only {self.context_length} fit "
                "with an answer; shorten it"
            )
        generation = Generation()
        with self._changed:
            if self._closing:
                raise QueueFullError("the engine is shutting down")
            if len(self._waiting) + len(self._running) >= self._config.max_queue:
                raise QueueFullError(f"{self._config.max_queue} requests are waiting; retry later")
            self._waiting.append((generation, request, prompt))
            self._changed.notify()
        return generation

    def count_prompt_tokens(self, messages: tuple[Message, ...]) -> int:
        """How many tokens a conversation takes as a prompt."""
        return len(self._template.encode(messages, self._tokenizer))

    def warm_up(self) -> None:
        """Run a prefill and each kind of step once, so that the first caller is fast."""
        cache = self._runner.open_cache(PREFILL_ROWS + 16)
        canvas = Canvas(self._spec, self._tokenizer.encode("warm " * 64))
        for gate in (0.0, 1.0, 1.0):
            step = canvas.next_step(max_rows=PREFILL_ROWS, num_masks=self._config.num_draft_tokens)
            canvas.apply(step, self._runner.forward([(cache, step)])[0], gate=gate)

    def close(self) -> None:
        """Abort everything and end the worker; each generation still gets its `Finished`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._worker.join()

    def _work(self) -> None:
        while self._admit():
            self._step()

    def _admit(self) -> bool:
        """Take over waiting requests, or wait for one. False when closing and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closing)
            waiting, self._waiting = self._waiting, deque()
            if self._closing:
                held = [g for g, *_ in waiting] + [run.generation for run in self._running]
                for generation in held:
                    generation.abort()
            self._running += [self._start(*entry) for entry in waiting]
            return bool(self._running) or not self._closing

    def _start(self, generation: Generation, request: Request, prompt: list[int]) -> _Running:
        room = self.context_length - len(prompt)
        max_new = min(request.max_new_tokens, room)
        # Masks stand behind the last token that is needed, so they need room as well.
        capacity = len(prompt) + max_new + 2 * self._config.num_draft_tokens
        return _Running(
            generation,
            Canvas(self._spec, list(prompt)),
            TextStream(self._tokenizer, request.stop),
            self._runner.open_cache(capacity),
            max_new,
        )

    def _step(self) -> None:
        """One forward for every running request, then what it decided."""
        for run in [run for run in self._running if run.generation.aborted]:
            self._finish(run, FinishReason.CANCELLED)
        steps = [
            run.canvas.next_step(max_rows=PREFILL_ROWS, num_masks=self._config.num_draft_tokens)
            for run in self._running
        ]
        try:
            rows = self._runner.forward(
                [(run.cache, step) for run, step in zip(self._running, steps, strict=True)]
            )
        except RuntimeError:
            # Out of memory or a failed kernel: the requests of this step end, the engine goes on.
            _log.exception("a forward failed")
            for run in list(self._running):
                self._finish(run, FinishReason.ERROR, "the language model failed; see the log")
            return
        for run, step, predictions in zip(list(self._running), steps, rows, strict=True):
            outcome = run.canvas.apply(step, predictions, gate=DRAFT_GATE)
            if outcome.committed:
                run.num_forwards += 1
                run.num_drafted += outcome.num_drafted
                self._commit(run, outcome.committed)

    def _commit(self, run: _Running, committed: tuple[int, ...]) -> None:
        """Tell the reader what is new, and finish at end of text, stop string or budget."""
        budget = committed[: run.max_new - run.num_new]
        ids = list(itertools.takewhile(lambda token: token not in self._spec.eos_ids, budget))
        ended = len(ids) < len(budget)
        run.num_new += len(ids)
        run.num_accepted += max(0, min(len(ids), len(committed) - 1))
        if run.first_commit_ms is None and ids:
            run.first_commit_ms = (time.perf_counter() - run.started) * 1000
        full = run.num_new >= run.max_new
        for event in run.text.commit(ids, () if ended or full else run.canvas.drafts):
            run.generation.put(event)
        if ended or run.text.stopped:
            self._finish(run, FinishReason.STOP)
        elif full:
            self._finish(run, FinishReason.LENGTH)

    def _finish(self, run: _Running, reason: FinishReason, error: str | None = None) -> None:
        self._running.remove(run)
        for event in run.text.finish():
            run.generation.put(event)
        run.generation.put(Finished(reason, run.usage(), error))
