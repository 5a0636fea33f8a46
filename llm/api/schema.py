"""The bodies of `/v1/chat/completions`, as OpenAI documents them, as far as they are served.

Parameters that would change the answer and are not served are refused. Unknown ones are ignored:
clients send many that only concern the hosted service (metadata, user, store, ...).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llm import types

MAX_STOPS = 4
"""As many stop strings as OpenAI takes."""

_NOT_SERVED = "is not supported yet; leave it out"


class TextPart(BaseModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    tool_calls: Annotated[list[Any] | None, Field(max_length=0)] = None

    def to_message(self) -> types.Message:
        """The message as the engine takes it; `developer` is today's name for `system`."""
        role: types.Role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, list):
            return types.Message(role, "".join(part.text for part in self.content))
        return types.Message(role, self.content or "")


class StreamOptions(BaseModel):
    """How to stream."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of a request.

    Without a temperature decoding is greedy: the embedded model answers best so.
    """

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    n: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, Any] | None = None
    modalities: list[str] | None = None

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value not in {None, 1}:
            raise ValueError("only one choice for each request is supported; ask again for more")
        return value

    @field_validator("tools", "functions", "logprobs", "logit_bias")
    @classmethod
    def _nothing(cls, value: Any) -> Any:
        if value:
            raise ValueError(_NOT_SERVED)
        return value

    @field_validator("tool_choice")
    @classmethod
    def _no_tool(cls, value: Any) -> Any:
        if value not in (None, "none", "auto"):
            raise ValueError(_NOT_SERVED)
        return value

    @field_validator("response_format")
    @classmethod
    def _plain_text(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type") != "text":
            raise ValueError("only {'type': 'text'} is supported yet; leave it out")
        return value

    @field_validator("modalities")
    @classmethod
    def _only_text(cls, value: list[str] | None) -> list[str] | None:
        if value not in (None, ["text"]):
            raise ValueError("only ['text'] is supported; leave it out")
        return value

    @field_validator("stop")
    @classmethod
    def _stop_says_something(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value == "" or (isinstance(value, list) and "" in value):
            raise ValueError("a stop string must not be empty")
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings are supported")
        return value

    def to_request(self, default_max_tokens: int) -> types.Request:
        """The request as the engine takes it."""
        limit = self.max_completion_tokens or self.max_tokens or default_max_tokens
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        messages = tuple(message.to_message() for message in self.messages)
        sampling = types.SamplingParams(
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            seed=self.seed,
        )
        return types.Request(messages, max_new_tokens=limit, stop=stop, sampling=sampling)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream should end with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)
