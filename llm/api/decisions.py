"""`POST /v1/decisions`: questions about a text, answered by label probabilities in one forward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import RootModel, TypeAdapter

from llm.api.decisions_schema import InceptionDecisions, OpenAiDecisions
from llm.api.errors import ApiError, from_engine
from llm.api.guard import TextEngine
from llm.api.responses import ready
from llm.api.route import ERRORS, ApiRoute, TextJson, body_of, while_connected
from llm.api.stream import finish_reason
from llm.engine.decision import Decision, DecisionError
from llm.types import InvalidRequestError, Message, QueueFullError
from llm.types import Request as EngineRequest

AT_ONCE = 8
"""Questions of one request in the engine at a time, which leaves room for others."""

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class _Body(RootModel[InceptionDecisions | OpenAiDecisions]):
    """Either dialect, for the description of the API."""


def create_router(engine: Callable[[], TextEngine | None], model: str) -> APIRouter:
    """The routes `POST /v1/decisions` and, for clients of the older name, `/v1/systemone`.

    engine: gives the engine, or None while it loads. model: the name it is served under.
    """
    router = APIRouter(prefix="/v1", route_class=ApiRoute, responses=ERRORS, tags=["decisions"])

    @router.post("/systemone", include_in_schema=False)
    @router.post("/decisions", openapi_extra=body_of(_Body))
    async def decide(request: Request) -> Response:
        """Answer questions about a text."""
        given = _OBJECT.validate_json(await request.body())
        is_openai = "input" in given or isinstance(given.get("questions"), list)
        dialect = OpenAiDecisions if is_openai else InceptionDecisions
        body = dialect.model_validate(given)
        loaded = ready(engine, model, body.model)
        asked = body.conversations()
        decisions = await while_connected(request, _decide_all(loaded, asked))
        return TextJson(body.body(decisions, model))

    return router


async def _decide_all(
    engine: TextEngine, asked: Sequence[tuple[Sequence[Message], Sequence[str]]]
) -> list[Decision]:
    """One decision for each question. Raises ApiError.

    The first goes alone: the others then find the text before it in the prefix cache.
    """
    requests = [(EngineRequest(tuple(messages)), labels) for messages, labels in asked]
    decisions: list[Decision] = []
    try:
        while len(decisions) < len(requests):
            end = len(decisions) + (AT_ONCE if decisions else 1)
            now = requests[len(decisions) : end]
            decisions += await asyncio.gather(*(engine.decide(*question) for question in now))
    except (InvalidRequestError, QueueFullError) as error:
        raise from_engine(error, param="questions") from error
    except DecisionError as error:
        finish_reason(error.finished)
        raise ApiError(500, str(error), code="server_error") from error
    return decisions
