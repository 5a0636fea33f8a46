"""The bodies of `/v1/chat/completions`, as OpenAI documents them, as far as they are served.

Parameters that would change the answer and are not served are refused. Unknown ones are ignored:
clients send many that only concern the hosted service (metadata, user, store, ...).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from llm import types
from llm.api.reasoning import Effort
from llm.api.tools import (
    MAX_TOOLS,
    CallPart,
    NamedTool,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
    format_grammar,
    tool_grammar,
)

MAX_STOPS = 4
"""As many stop strings as OpenAI takes."""

MAX_CHOICES = 8

_GUIDES = ("guided_regex", "guided_choice", "guided_grammar")


class TextPart(BaseModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


# A union with str would make two complaints out of one mistake, and the first of them the wrong.
Content = Annotated[
    list[TextPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart])
]

Off = Annotated[list[Any] | None, Field(max_length=0)]
"""A list that nothing may be in."""

_ROLES: dict[str, types.Role] = {"developer": "system", "function": "tool"}
"""Other names for the engine's roles: the one is newer, the other older."""


class ChatMessage(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
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
        """The message as the engine takes it."""
        role = _ROLES.get(self.role) or cast(types.Role, self.role)
        text = "".join(part.text for part in self.content or ())
        calls = tuple(call.to_call() for call in self.tool_calls or ())
        return types.Message(role, text, calls)


class StreamOptions(BaseModel):
    """How to stream."""

    include_usage: bool | None = None


TokenId = Annotated[int, Field(ge=0)]


class SamplingOptions(BaseModel):
    """How tokens are picked, in all requests for text.

    Without a temperature decoding is greedy: the embedded model answers best so. top_k, min_p,
    repetition_penalty, min_tokens and ignore_eos go beyond OpenAI's, under vLLM's names.
    """

    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Field(ge=0.01, le=2)] = None
    min_tokens: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    ignore_eos: bool | None = None

    def sampling(self, num_logprobs: int | None = None) -> types.SamplingParams:
        """The parameters as the engine takes them."""
        return types.SamplingParams(
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            # vLLM's and Inception's "all" is -1.
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=tuple((self.logit_bias or {}).items()),
            min_new_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            num_logprobs=num_logprobs,
            seed=self.seed,
        )


class TextOptions(SamplingOptions):
    """What all requests for text have in common."""

    model_config = ConfigDict(extra="ignore")

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _unpack_extra_body(cls, given: Any) -> Any:
        # Clients that do not know what their SDK does with it send it as it is.
        extra = given.get("extra_body") if isinstance(given, dict) else None
        return {**extra, **given} if isinstance(extra, dict) else given

    @field_validator("stop")
    @classmethod
    def _stop_says_something(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value == "" or (isinstance(value, list) and "" in value):
            raise ValueError("a stop string must not be empty")
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings are supported")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream should end with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(TextOptions):
    """The body of a request for a chat completion.

    guided_regex, guided_choice and guided_grammar go beyond OpenAI's, under vLLM's names;
    diffusing, realtime and the reasoning summaries are Inception's.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = None
    tools: Annotated[list[ToolDefinition] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Off = None
    function_call: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    modalities: list[str] | None = None
    audio: None = None
    web_search_options: None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    reasoning_effort: Effort | None = None
    reasoning_summary: bool | None = None
    reasoning_summary_wait: bool | None = None
    diffusing: bool | None = None
    realtime: bool | None = None

    @field_validator("modalities")
    @classmethod
    def _only_text(cls, value: list[str] | None) -> list[str] | None:
        if value not in (None, ["text"]):
            raise ValueError("only ['text'] is supported; leave it out")
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
        tools = info.data.get("tools") or ()
        if value not in (None, "none", "auto") and not tools:
            raise ValueError("tool_choice needs tools")
        names = {tool.function.name for tool in tools}
        if isinstance(value, NamedTool) and value.function.name not in names:
            raise ValueError(f"there is no tool '{value.function.name}' among the tools")
        return value

    @field_validator("guided_regex", "guided_choice", "guided_grammar")
    @classmethod
    def _one_wish(cls, value: Any, info: ValidationInfo) -> Any:
        others = ("response_format", *_GUIDES)
        if value is not None and any(info.data.get(other) is not None for other in others):
            raise ValueError("only one of response_format and the guided_ parameters can be kept")
        return value

    def to_request(self, default_max_tokens: int) -> types.Request:
        """The request as the engine takes it."""
        calls = tool_grammar(self.tool_choice, parallel=self.parallel_tool_calls is not False)
        tools = tuple(tool.to_tool() for tool in self.tools or ()) if calls else ()
        wanted = next((wish for wish in self._grammars() if wish is not None), None)
        return types.Request(
            tuple(message.to_message() for message in self.messages),
            max_new_tokens=self.max_completion_tokens or self.max_tokens or default_max_tokens,
            stop=self.stops,
            sampling=self.sampling((self.top_logprobs or 0) if self.logprobs else None),
            priority=types.Priority.VOICE if self.realtime else types.Priority.TEXT,
            tools=tools,
            grammar=calls if tools and calls and not (wanted and calls.mode == "auto") else wanted,
        )

    @property
    def grammar_param(self) -> str:
        """The parameter that asks for a grammar."""
        given = (name for name in ("response_format", *_GUIDES) if getattr(self, name) is not None)
        return next(given, "tools")

    def _grammars(self) -> tuple[types.Grammar | None, ...]:
        regex, choice, lark = self.guided_regex, self.guided_choice, self.guided_grammar
        return (
            format_grammar(self.response_format),
            None if regex is None else types.RegexGrammar(regex),
            None if choice is None else types.ChoiceGrammar(tuple(choice)),
            None if lark is None else types.LarkGrammar(lark),
        )
