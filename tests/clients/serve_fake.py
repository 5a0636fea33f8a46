"""A server of the text routes for clients to try, whose model answers by what it is asked.

The last message decides: with tools on offer it is a call of the first, where JSON is wanted it is
an object, else it is a greeting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastapi import FastAPI

from llm.api.app import create_router
from llm.api.body_limits import BodyLimitMiddleware
from llm.api.chat import ChatService
from llm.api.route import create_fallback
from llm.types import (
    Committed,
    Event,
    Finished,
    FinishReason,
    JsonSchemaGrammar,
    Provisional,
    Request,
    Revised,
    ToolCall,
)
from tests.llm.fakes import STOP, USAGE, FakeEngine, FakeGeneration, live

CALL = ToolCall("call_0123456789", "set_timer", '{"seconds": 300}')
GREETING = "Grüß Gott 👋"


def answer(request: Request) -> tuple[Event, ...]:
    """What is answered to a request."""
    if request.prompt is not None:
        return (Committed("return "), Committed("a + b"), STOP)
    if "<|code_to_edit|>" in request.messages[-1].content:
        return (Committed("```\nx = 2\n```"), STOP)
    if request.messages[-1].role == "tool":
        return (Committed("The timer is set."), STOP)
    if isinstance(request.grammar, JsonSchemaGrammar):
        return (Committed('{"seconds": '), Committed("300}"), STOP)
    if request.tools:
        return (CALL, Finished(FinishReason.TOOL_CALLS, USAGE))
    first, second = GREETING.split(" ", 1)
    guesses = (Provisional(0, "Guten Tag"), Revised(0, GREETING))
    return (*guesses, Committed(first), Committed(" " + second), STOP)


class AnsweringEngine(FakeEngine):
    """Answers each request with what it asks for."""

    def submit(self, request: Request) -> FakeGeneration:
        """Start."""
        self.events = answer(request)
        return super().submit(request)


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Serve, and give the address without `/v1`."""
    engine = AnsweringEngine()
    app = FastAPI()
    router = create_router(ChatService(lambda: engine, "ember"))
    app.include_router(router)
    app.include_router(create_fallback([router]))
    app.add_middleware(BodyLimitMiddleware)
    with live(app) as port:
        yield f"http://127.0.0.1:{port}"
