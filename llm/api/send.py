"""An answer under way as an HTTP response, and its end when the client hangs up."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from llm.api.chat import Answer
from llm.api.route import EventStream, TextJson, while_connected


async def send(request: Request, answer: Answer, *, stream: bool | None) -> Response:
    """The answer, whole or as events; it is aborted when nobody reads it. Raises ApiError."""
    if stream:
        return EventStream(answer.events(), answer.close)
    try:
        return TextJson(await while_connected(request, answer.whole()))
    finally:
        answer.close()
