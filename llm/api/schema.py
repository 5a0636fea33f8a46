"""The bodies of `/v1/chat/completions`, as OpenAI documents them, as far as they are served.

Parameters that would change the answer and are not served are refused. Unknown ones are ignored:
clients send many that only concern the hosted service (metadata, user, store, ...).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from llm import types
from llm.api.tools import (
    MAX_TOOLS,
    CallPart,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
    format_grammar,
    tool_grammar,
)

MAX_STOPS = 4
"""As many stop strings as OpenAI takes."""

MAX_CHOICES = 8


class TextPart(BaseModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[CallPart] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError("content may be null only in messages of the assistant")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant calls tools")
        return self

    def to_message(self) -> types.Message:
        """The message as the engine takes it; `developer` is today's name for `system`."""
        role: types.Role = "system" if self.role == "developer" else self.role
        text = self.content or ""
        if isinstance(text, list):
            text = "".join(part.text for part in text)
        calls = tuple(call.to_call() for call in self.tool_calls or ())
        return types.Message(role, text, calls)


class StreamOptions(BaseModel):
    """How to stream."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of a request.

    Without a temperature decoding is greedy: the embedded model answers best so. top_k, min_p,
    repetition_penalty, min_tokens, ignore_eos, guided_regex, guided_choice and guided_grammar go
    beyond OpenAI's, under the names that vLLM gives them.
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
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = None
    tools: Annotated[list[ToolDefinition] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Any] | None, Field(max_length=0)] = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    modalities: list[str] | None = None
    top_k: Annotated[int | None, Field(ge=0)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=2)] = None
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    ignore_eos: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

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

    @field_validator("top_logprobs")
    @classmethod
    def _beside_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("top_logprobs needs logprobs to be true")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _beside_tools(cls, value: ToolChoice | None, info: ValidationInfo) -> ToolChoice | None:
        if value not in (None, "none", "auto") and not info.data.get("tools"):
            raise ValueError("tool_choice needs tools")
        return value

    @field_validator("guided_regex", "guided_choice", "guided_grammar")
    @classmethod
    def _one_wish(cls, value: Any, info: ValidationInfo) -> Any:
        others = ("response_format", "guided_regex", "guided_choice", "guided_grammar")
        if value is not None and any(info.data.get(other) is not None for other in others):
            raise ValueError("only one of response_format and the guided_ parameters can be kept")
        return value

    def to_request(self, default_max_tokens: int) -> types.Request:
        """The request as the engine takes it."""
        limit = self.max_completion_tokens or self.max_tokens or default_max_tokens
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        calls = tool_grammar(self.tool_choice, parallel=self.parallel_tool_calls is not False)
        tools = tuple(tool.to_tool() for tool in self.tools or ()) if calls else ()
        wanted = next((wish for wish in self._grammars() if wish is not None), None)
        return types.Request(
            tuple(message.to_message() for message in self.messages),
            max_new_tokens=limit,
            stop=stop,
            sampling=self._sampling(),
            tools=tools,
            grammar=calls if tools and calls and not (wanted and calls.mode == "auto") else wanted,
        )

    def _grammars(self) -> tuple[types.Grammar | None, ...]:
        regex, choice, lark = self.guided_regex, self.guided_choice, self.guided_grammar
        return (
            format_grammar(self.response_format),
            None if regex is None else types.RegexGrammar(regex),
            None if choice is None else types.ChoiceGrammar(tuple(choice)),
            None if lark is None else types.LarkGrammar(lark),
        )

    def _sampling(self) -> types.SamplingParams:
        return types.SamplingParams(
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            min_p=self.min_p or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=tuple((self.logit_bias or {}).items()),
            min_new_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            seed=self.seed,
        )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream should end with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)
