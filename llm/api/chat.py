"""Chat completions on the engine: one generation for each request, aborted when nobody reads it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from llm.api.errors import ApiError, from_engine
from llm.api.schema import ChatRequest
from llm.api.stream import DONE, Completion, event, fold
from llm.types import (
    Committed,
    Event,
    Finished,
    GrammarError,
    InvalidRequestError,
    QueueFullError,
    Request,
    ToolCall,
    Usage,
)

DEFAULT_MAX_TOKENS = 512
"""How long an answer may get where the client sets no limit."""


class Generation(Protocol):
    """One running request: an async stream of events that ends after its Finished."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events."""
        ...

    def abort(self) -> None:
        """Stop at the next step; harmless when it has ended."""
        ...


class ChatEngine(Protocol):
    """What generates."""

    def submit(self, request: Request) -> Generation:
        """Start. Raises InvalidRequestError and QueueFullError."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        ...


class ChatService:
    """All chat completions of one server.

    engine: gives the engine, or None while it loads. model: the name it is served under.
    """

    def __init__(self, engine: Callable[[], ChatEngine | None], model: str) -> None:
        self.model = model
        self._engine = engine
        self._running: set[ChatAnswer] = set()

    def check_ready(self) -> ChatEngine:
        """The engine. Raises ApiError (503) while it loads."""
        engine = self._engine()
        if engine is None:
            raise ApiError(503, "the model is still loading; try again", code="model_loading")
        return engine

    def start(self, chat: ChatRequest) -> ChatAnswer:
        """Submit a request. Raises ApiError."""
        engine = self.check_ready()
        if chat.model != self.model:
            message = f"the model '{chat.model}' does not exist; use '{self.model}'"
            raise ApiError(404, message, param="model", code="model_not_found")
        generations = self._submit(engine, chat)
        completion = Completion(
            f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), self.model, engine.token_bytes
        )
        answer = ChatAnswer(completion, generations, self._running.discard, chat.wants_usage)
        self._running.add(answer)
        return answer

    def _submit(self, engine: ChatEngine, chat: ChatRequest) -> list[Generation]:
        """One generation for each choice, all or none. Raises ApiError."""
        generations: list[Generation] = []
        try:
            request = chat.to_request(DEFAULT_MAX_TOKENS)
            for choice in range(chat.n or 1):
                generation = engine.submit(_for_choice(request, choice))
                generations.append(generation)
        except (InvalidRequestError, QueueFullError) as error:
            for generation in generations:
                generation.abort()
            param = "response_format" if isinstance(error, GrammarError) else "messages"
            raise from_engine(error, param=param) from error
        return generations

    def abort_all(self) -> None:
        """Abort what runs, for a shutdown: every stream then ends with an error."""
        for answer in self._running:
            answer.abort()


class ChatAnswer:
    """One answer of one choice or more under way; whoever reads it must `close` it."""

    def __init__(
        self,
        completion: Completion,
        generations: Sequence[Generation],
        on_close: Callable[[ChatAnswer], None],
        wants_usage: bool,
    ) -> None:
        self._completion = completion
        self._generations = generations
        self._on_close = on_close
        self._wants_usage = wants_usage

    def abort(self) -> None:
        """Stop generating; the events end soon."""
        for generation in self._generations:
            generation.abort()

    def close(self) -> None:
        """Nobody reads any more: stop generating and free the place."""
        self.abort()
        self._on_close(self)

    async def whole(self) -> dict[str, Any]:
        """The complete answer as a JSON object. Raises ApiError."""
        return fold([chunk async for chunk in self._chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events: committed text only."""
        try:
            async for chunk in self._chunks():
                if chunk["choices"] or self._wants_usage:
                    yield event(chunk)
        except ApiError as error:
            # The status line is long gone: clients look for `error` inside an event.
            yield event(error.body())
        yield DONE

    async def _chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Every chunk in order, that of the usage last. Raises ApiError."""
        completion = self._completion
        for index in range(len(self._generations)):
            yield completion.role_chunk(index)
        num_calls = [0] * len(self._generations)
        usages: list[Usage] = []
        async for index, part in _merged(self._generations):
            if isinstance(part, Committed | ToolCall):
                if chunk := completion.event_chunk(index, part, num_calls[index]):
                    yield chunk
                num_calls[index] += isinstance(part, ToolCall)
            elif isinstance(part, Finished):
                yield completion.finish_chunk(index, part)
                usages.append(part.usage)
        if len(usages) < len(self._generations):
            raise ApiError(500, "the generation ended without a result", code="server_error")
        yield completion.usage_chunk(usages)


async def _merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Event]]:
    """The events of all generations as they come, each with the number of its generation."""
    if len(generations) == 1:
        async for part in generations[0]:
            yield 0, part
        return
    came: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()

    async def read(index: int, generation: Generation) -> None:
        try:
            async for part in generation:
                came.put_nowait((index, part))
        finally:
            came.put_nowait(None)

    readers = [asyncio.create_task(read(i, g)) for i, g in enumerate(generations)]
    try:
        for _ in generations:
            while (item := await came.get()) is not None:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _for_choice(request: Request, choice: int) -> Request:
    """The request for one of several choices: each has a seed of its own, if there is one."""
    seed = request.sampling.seed
    if not choice or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + choice))


async def until_disconnect(receive: Callable[[], Any], work: asyncio.Task[Any]) -> None:
    """Wait for `work`, or cancel it when the client hangs up (ASGI `http.disconnect`)."""
    watcher = asyncio.ensure_future(_disconnect(receive))
    await asyncio.wait({watcher, work}, return_when=asyncio.FIRST_COMPLETED)
    watcher.cancel()
    work.cancel()
    await asyncio.gather(watcher, work, return_exceptions=True)


async def _disconnect(receive: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
