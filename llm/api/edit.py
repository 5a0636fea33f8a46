"""`POST /v1/edit/completions` and `/v1/apply/completions`: code rewritten, or merged.

The one message of a request carries tagged sections. Their order differs between clients, so each
is looked for on its own. The answer is told when it is complete: it replaces a region as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from llm import types
from llm.api.answers import EditCompletion, answers
from llm.api.chat import ChatService, Plan
from llm.api.chat_chunks import ChatChoice, fold_chat
from llm.api.errors import ApiError
from llm.api.route import ApiRoute, body_of, read_body
from llm.api.schema import ChatMessage, TextOptions
from llm.api.send import send
from llm.api.stream import Json

MAX_TOKENS = 1024

_EDIT = (
    "You edit code. Go on with the changes that the user has begun, and answer with the new text "
    "of the region between <|code_to_edit|> and <|/code_to_edit|>, and nothing else."
)
_APPLY = (
    "You merge an update into code. Comments like '... existing code ...' stand for code that "
    "stays as it is. Answer with the whole merged code, and nothing else."
)
_FENCE = re.compile(r"\A\s*```[^\n]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_TAG = re.compile(r"<\|/?(?:code_to_edit|updated_code|cursor)\|>\n?")


class EditRequest(TextOptions):
    """The body of both."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1)]

    def plan(self, instructions: str, tags: Sequence[str]) -> Plan:
        """What it asks for. Raises ApiError where a tag is missing."""
        message = self.messages[0].to_message()
        missing = [tag for tag in tags if section(message.content, tag) is None]
        if message.role != "user" or missing:
            wanted = ", ".join(f"<|{tag}|>" for tag in missing or tags)
            text = f"one message of the user must contain the required prompt tags: {wanted}"
            raise ApiError(400, text, param="messages")
        request = types.Request(
            (types.Message("system", instructions), message),
            max_new_tokens=self.max_tokens or MAX_TOKENS,
            stop=self.stops,
            sampling=self.sampling(),
        )
        return Plan(
            [request],
            ChatChoice,
            fold_chat,
            kind="chat.completion.chunk",
            id_prefix="edit-",
            wants_usage=self.wants_usage,
            reworked=cleaned,
        )


def section(text: str, tag: str) -> str | None:
    """What stands between a tag and its end; None where one of them is missing."""
    _, opens, rest = text.partition(f"<|{tag}|>")
    inside, closes, _ = rest.partition(f"<|/{tag}|>")
    return inside if opens and closes else None


def cleaned(answer: str) -> str:
    """The code of an answer, without the fence or the tags that models like to put around it."""
    fenced = _FENCE.match(answer)
    return _TAG.sub("", fenced[1] if fenced else answer)


def _fold_edit(chunks: Sequence[Json]) -> Json:
    return fold_chat(chunks, "edit.completion")


def create_router(service: ChatService) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["edit"])
    routes: dict[str, Callable[[EditRequest], Plan]] = {
        "/edit/completions": lambda body: replace(
            body.plan(_EDIT, ["current_file_content", "code_to_edit"]), fold=_fold_edit
        ),
        "/apply/completions": lambda body: body.plan(_APPLY, ["original_code", "update_snippet"]),
    }

    def add(path: str, plan: Callable[[EditRequest], Plan]) -> None:
        @router.post(
            path, name=path, responses=answers(EditCompletion), openapi_extra=body_of(EditRequest)
        )
        async def rewrite(request: Request) -> Response:
            """Rewrite code, whole or as the events of a chat completion."""
            body = await read_body(request, EditRequest)
            return await send(request, service.start(body.model, plan(body)), stream=body.stream)

    for path, plan in routes.items():
        add(path, plan)
    return router
