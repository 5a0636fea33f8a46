"""The routes of `/v1/responses`: make a response, get it again, delete it."""

from __future__ import annotations

import itertools
import logging
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from llm.api.chat import ALIASES
from llm.api.errors import ApiError, from_engine
from llm.api.guard import Generation, TextEngine, caller_name
from llm.api.responses_schema import Item, ResponsesRequest
from llm.api.responses_store import ResponseStore, StoredResponse
from llm.api.responses_stream import Json, ResponseBuilder, new_response, sse
from llm.api.route import (
    ERRORS,
    STREAM,
    ApiRoute,
    EventStream,
    TextJson,
    body_of,
    read_body,
    while_connected,
)
from llm.api.stream import finish_reason
from llm.types import Finished, GrammarError, InvalidRequestError, QueueFullError

_log = logging.getLogger(__name__)

_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


class ResponsesService:
    """All responses of one server.

    engine: gives the engine, or None while it loads. model: the name it is served under. store:
    None keeps nothing.
    """

    def __init__(
        self, engine: Callable[[], TextEngine | None], model: str, store: ResponseStore | None
    ) -> None:
        self._engine = engine
        self.model = model
        self.store = store
        self._running: set[RunningResponse] = set()

    async def start(self, body: ResponsesRequest) -> RunningResponse:
        """Begin a response; whoever reads it must `close` it. Raises ApiError."""
        engine = ready(self._engine, self.model, body.model)
        history = await self._history(body.previous_response_id)
        try:
            generation = engine.submit(body.to_request(history))
        except (InvalidRequestError, QueueFullError) as error:
            param = "text.format" if isinstance(error, GrammarError) else "input"
            raise from_engine(error, param=param) from error
        stored = self.store is not None and body.store is not False
        response = new_response(
            body,
            response_id=f"resp_{uuid.uuid4().hex}",
            model=self.model,
            created=int(time.time()),
            stored=stored,
        )
        running = RunningResponse(
            generation,
            response,
            [*history, *body.input],
            self.store if stored else None,
            self._running.discard,
        )
        self._running.add(running)
        return running

    def abort_all(self) -> None:
        """Abort what runs, for a shutdown: every response then ends as failed."""
        for running in self._running:
            running.abort()

    async def _history(self, response_id: str | None) -> list[Item]:
        if response_id is None:
            return []
        stored = await self.find(response_id)
        if stored is None:
            message = f"there is no response '{response_id}', or it is no longer kept"
            raise ApiError(
                400, message, param="previous_response_id", code="previous_response_not_found"
            )
        return _ITEMS.validate_python([*stored.items, *stored.response["output"]])

    async def find(self, response_id: str) -> StoredResponse | None:
        """A response that this caller has stored."""
        if self.store is None:
            return None
        return await self.store.find(caller_name(), response_id, time.time())


class RunningResponse:
    """One response under way.

    items: all that it answers. store: where it is kept at its end, None = nowhere.
    """

    def __init__(
        self,
        generation: Generation,
        response: Json,
        items: Sequence[Item],
        store: ResponseStore | None,
        on_close: Callable[[RunningResponse], None],
    ) -> None:
        self._generation = generation
        self._items = items
        self._store = store
        self._on_close = on_close
        ids = (uuid.uuid4().hex for _ in itertools.count())
        self._builder = ResponseBuilder(response, ids)

    def abort(self) -> None:
        """Stop generating; the events end soon."""
        self._generation.abort()

    def close(self) -> None:
        """Nobody reads any more."""
        self._generation.abort()
        self._on_close(self)

    async def whole(self) -> Json:
        """The complete response. Raises ApiError where it failed."""
        async for event in self._generation:
            if isinstance(event, Finished):
                # Says of a failure which status it is answered with.
                finish_reason(event)
            self._builder.take(event, int(time.time()))
        await self._keep()
        return self._builder.response

    async def events(self) -> AsyncIterator[bytes]:
        """The response as server-sent events."""
        for event in self._builder.begin():
            yield sse(event)
        async for part in self._generation:
            events = self._builder.take(part, int(time.time()))
            if isinstance(part, Finished):
                # Before the last event is out: whoever has read it may go on from here at once.
                await self._keep()
            for event in events:
                yield sse(event)

    async def _keep(self) -> None:
        if self._store is not None:
            items = _ITEMS.dump_python(list(self._items), mode="json")
            stored = StoredResponse(items, self._builder.response)
            try:
                await self._store.save(caller_name(), stored, time.time())
            except sqlite3.Error:
                # A full disk must not cost the answer: it is only not kept.
                _log.exception("a response could not be kept")


def ready(
    engine: Callable[[], TextEngine | None], served_model: str, asked_model: str
) -> TextEngine:
    """The engine, if it is loaded and serves this model. Raises ApiError."""
    loaded = engine()
    if loaded is None:
        raise ApiError(503, "the model is still loading; try again", code="model_loading")
    if asked_model != served_model and asked_model not in ALIASES:
        message = f"the model '{asked_model}' does not exist; use '{served_model}'"
        raise ApiError(404, message, param="model", code="model_not_found")
    return loaded


def create_router(service: ResponsesService) -> APIRouter:
    """The routes under `/v1/responses`."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, responses=ERRORS, tags=["responses"])

    @router.post("/responses", responses=STREAM, openapi_extra=body_of(ResponsesRequest))
    async def create(request: Request) -> Response:
        """Make a response, whole or as events."""
        body = await read_body(request, ResponsesRequest)
        running = await service.start(body)
        if body.stream:
            return EventStream(running.events(), running.close)
        try:
            return TextJson(await while_connected(request, running.whole()))
        finally:
            running.close()

    @router.get("/responses/{response_id}")
    async def get(response_id: str) -> Response:
        """A response that was stored."""
        stored = await service.find(response_id)
        if stored is None:
            raise _no_such(response_id)
        return TextJson(stored.response)

    @router.delete("/responses/{response_id}")
    async def delete(response_id: str) -> Response:
        """Forget a response."""
        if service.store is None or not await service.store.delete(caller_name(), response_id):
            raise _no_such(response_id)
        answer: dict[str, Any] = {"id": response_id, "object": "response", "deleted": True}
        return TextJson(answer)

    return router


def _no_such(response_id: str) -> ApiError:
    message = f"there is no response '{response_id}', or it is no longer kept"
    return ApiError(404, message, param="response_id", code="response_not_found")
