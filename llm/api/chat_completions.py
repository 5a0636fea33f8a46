"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from llm.api.answers import ChatCompletion, answers
from llm.api.chat import DEFAULT_MAX_TOKENS, ChatService, Plan
from llm.api.chat_chunks import ChatChoice, fold_chat
from llm.api.diffusing import DiffusingChoice
from llm.api.reasoning import summary
from llm.api.route import ApiRoute, body_of, read_body
from llm.api.schema import ChatRequest
from llm.api.send import send
from llm.api.stream import Choice, Completion


def plan_of(chat: ChatRequest) -> Plan:
    """What a request asks for."""
    reasoning = summary(chat.reasoning_summary)
    extra: dict[str, Any] = {"reasoning_summary": reasoning} if reasoning else {}
    # Snapshots are of use only while they come.
    shape = DiffusingChoice if chat.stream and chat.diffusing else ChatChoice

    def choice(completion: Completion, index: int) -> Choice:
        return shape(completion, index, **extra)

    return Plan(
        [chat.to_request(DEFAULT_MAX_TOKENS)],
        choice,
        fold_chat,
        kind="chat.completion.chunk",
        id_prefix="chatcmpl-",
        num_choices=chat.n or 1,
        wants_usage=chat.wants_usage,
        grammar_param=chat.grammar_param,
    )


def create_router(service: ChatService) -> APIRouter:
    """The route."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["chat"])

    @router.post(
        "/chat/completions", responses=answers(ChatCompletion), openapi_extra=body_of(ChatRequest)
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, whole or as events."""
        chat = await read_body(request, ChatRequest)
        return await send(request, service.start(chat.model, plan_of(chat)), stream=chat.stream)

    return router
