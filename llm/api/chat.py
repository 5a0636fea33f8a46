"""Chat completions on the engine: one generation for each request, aborted when nobody reads it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from llm.api.errors import ApiError
from llm.api.schema import ChatRequest
from llm.api.stream import DONE, Completion, event
from llm.types import Committed, Event, Finished, InvalidRequestError, QueueFullError, Request

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
        try:
            generation = engine.submit(chat.to_request(DEFAULT_MAX_TOKENS))
        except InvalidRequestError as error:
            raise ApiError(400, str(error), param="messages") from error
        except QueueFullError as error:
            raise ApiError(429, str(error), code="rate_limit_exceeded") from error
        completion = Completion(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), self.model)
        answer = ChatAnswer(completion, generation, self._running.discard, chat.wants_usage)
        self._running.add(answer)
        return answer

    def abort_all(self) -> None:
        """Abort what runs, for a shutdown: every stream then ends with an error."""
        for answer in self._running:
            answer.abort()


class ChatAnswer:
    """One answer under way; whoever reads it must `close` it."""

    def __init__(
        self,
        completion: Completion,
        generation: Generation,
        on_close: Callable[[ChatAnswer], None],
        wants_usage: bool,
    ) -> None:
        self._completion = completion
        self._generation = generation
        self._on_close = on_close
        self._wants_usage = wants_usage

    def abort(self) -> None:
        """Stop generating; the events end soon."""
        self._generation.abort()

    def close(self) -> None:
        """Nobody reads any more: stop generating and free the place."""
        self._generation.abort()
        self._on_close(self)

    async def whole(self) -> dict[str, Any]:
        """The complete answer as a JSON object. Raises ApiError."""
        pieces: list[str] = []
        async for part in self._generation:
            if isinstance(part, Committed):
                pieces.append(part.text)
            elif isinstance(part, Finished):
                return self._completion.whole("".join(pieces), part)
        raise ApiError(500, "the generation ended without a result", code="server_error")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events: committed text only."""
        yield self._completion.role_chunk()
        try:
            async for part in self._generation:
                if isinstance(part, Committed) and part.text:
                    yield self._completion.text_chunk(part.text)
                elif isinstance(part, Finished):
                    yield self._completion.finish_chunk(part)
                    if self._wants_usage:
                        yield self._completion.usage_chunk(part.usage)
        except ApiError as error:
            # The status line is long gone: clients look for `error` inside an event.
            yield event(error.body())
        yield DONE


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
