"""`POST /v1/completions` and `/v1/fim/completions`: text that goes on, without a conversation.

The model goes on from the prompt as it stands. Models without tokens for infilling, like the
embedded one, do not read the suffix: where its first line comes up, the middle is complete.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field, model_validator

from llm import types
from llm.api.answers import TextCompletion, answers
from llm.api.chat import ChatService, Plan
from llm.api.route import ApiRoute, body_of, read_body
from llm.api.schema import MAX_CHOICES, TextOptions
from llm.api.send import send
from llm.api.stream import Choice, Completion
from llm.api.text_chunks import KIND, TextChoice, fold_text

MAX_PROMPTS = 16
MAX_ANSWERS = 32
"""Of one request; the engine's queue holds 64 by default, and others want to use it too."""

FIM_MAX_TOKENS = 512
FIM_STOPS = ("\n\n", "\n \n")
"""Inception's defaults: a blank line ends what is filled in."""

END_OF_TEXT = "<|endoftext|>"
"""What one client sends for "there is no suffix"."""

MIN_ANCHOR_CHARACTERS = 3
"""A shorter line, such as a lone bracket, may well belong to the middle."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Prompt = Annotated[str, Field(min_length=1)]
Prompts = Annotated[
    list[Prompt],
    Field(min_length=1, max_length=MAX_PROMPTS),
    BeforeValidator(_as_list, json_schema_input_type=Prompt | list[Prompt]),
]


class CompletionRequest(TextOptions):
    """The body of `/v1/completions`."""

    prompt: Prompts
    suffix: str | None = None
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = None
    best_of: int | None = None
    echo: bool | None = None
    # Strict, since `false` would be read as 0, which asks for them.
    logprobs: Annotated[int | None, Field(ge=0, le=5, strict=True)] = None

    @model_validator(mode="after")
    def _all_are_kept(self) -> CompletionRequest:
        if self.best_of not in (None, self.n or 1):
            raise ValueError("best_of must be n: all answers are returned")
        if len(self.prompt) * (self.n or 1) > MAX_ANSWERS:
            raise ValueError(f"at most {MAX_ANSWERS} answers, prompts times n, are given at once")
        return self

    def plan(self, default_max_tokens: int, default_stops: tuple[str, ...] = ()) -> Plan:
        """What it asks for."""
        stops = (*(self.stops or default_stops), *anchor(self.suffix))
        num_choices = self.n or 1
        requests = [
            types.Request(
                (),
                prompt=prompt,
                max_new_tokens=self.max_tokens or default_max_tokens,
                stop=stops,
                sampling=self.sampling(self.logprobs),
            )
            for prompt in self.prompt
        ]

        def choice(completion: Completion, index: int) -> Choice:
            echo = self.prompt[index // num_choices] if self.echo else ""
            return TextChoice(completion, index, echo=echo, with_logprobs=self.logprobs is not None)

        return Plan(
            requests,
            choice,
            fold_text,
            kind=KIND,
            id_prefix="cmpl-",
            num_choices=num_choices,
            wants_usage=self.wants_usage,
            param="prompt",
        )


class FimRequest(CompletionRequest):
    """The body of `/v1/fim/completions`; without stops, a blank line ends the answer."""


def anchor(suffix: str | None) -> tuple[str, ...]:
    """The first line of a suffix that tells it apart from any other text, if it has one.

    It ends the answer: the text from there on is there already.
    """
    lines = (line.rstrip() for line in (suffix or "").replace(END_OF_TEXT, "").splitlines())
    first = next((line for line in lines if line.strip()), "")
    return (first,) if len(first.strip()) >= MIN_ANCHOR_CHARACTERS else ()


def create_router(service: ChatService) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1", route_class=ApiRoute, tags=["completions"])
    documented = answers(TextCompletion)

    @router.post("/completions", responses=documented, openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Go on from a text, whole or as events."""
        body = await read_body(request, CompletionRequest)
        # As many as OpenAI's default.
        answer = service.start(body.model, body.plan(default_max_tokens=16))
        return await send(request, answer, stream=body.stream)

    @router.post("/fim/completions", responses=documented, openapi_extra=body_of(FimRequest))
    async def fim(request: Request) -> Response:
        """Fill in what stands between a prompt and a suffix."""
        body = await read_body(request, FimRequest)
        plan = body.plan(FIM_MAX_TOKENS, FIM_STOPS)
        return await send(request, service.start(body.model, plan), stream=body.stream)

    return router
