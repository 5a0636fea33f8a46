"""The routes under `/v1` that OpenAI clients use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from llm.api.chat import ChatAnswer, ChatService, until_disconnect
from llm.api.errors import ApiError, from_validation
from llm.api.schema import ChatRequest

MAX_BODY_BYTES = 4 * 1024 * 1024
"""More than any context window holds as text."""


class _EventStream(StreamingResponse):
    """Server-sent events of one answer, which is closed however the response ends."""

    def __init__(self, answer: ChatAnswer) -> None:
        # Without these, proxies hold back what should be read as it comes.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(answer.chunks(), media_type="text/event-stream", headers=headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


def create_router(service: ChatService) -> APIRouter:
    """The routes `POST /v1/chat/completions` and `GET /v1/models`, served by `service`."""
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        try:
            chat = ChatRequest.model_validate_json(await _read_body(request))
            answer = service.start(chat)
            if chat.stream:
                return _EventStream(answer)
            return JSONResponse(await _whole(request, answer))
        except ValidationError as error:
            return from_validation(error).response()
        except ApiError as error:
            return error.response()
        except ClientDisconnect:
            # Nobody reads this; the number is nginx's for "client closed request".
            return Response(status_code=499)

    @router.get("/models")
    async def models() -> Response:
        try:
            service.check_ready()
        except ApiError as error:
            return error.response()
        card = {"id": service.model, "object": "model", "created": 0, "owned_by": "ember"}
        return JSONResponse({"object": "list", "data": [card]})

    return router


async def _whole(request: Request, answer: ChatAnswer) -> dict[str, Any]:
    work = asyncio.create_task(answer.whole())
    try:
        await until_disconnect(request.receive, work)
    finally:
        answer.close()
    if work.cancelled():
        raise ClientDisconnect
    return work.result()


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    chunks: AsyncIterator[bytes] = request.stream()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    return bytes(body)
