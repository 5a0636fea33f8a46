"""The bodies of `/v1/responses` (Open Responses, 2026-04-24), as far as they are served.

Items become messages for the engine: calls of one turn belong to one assistant message, and their
outputs follow in the order of the calls, since the model knows no ids. What would change the
answer and is not served is refused; what concerns only the hosted service is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
)

from llm import types
from llm.api.errors import ApiError

DEFAULT_MAX_TOKENS = 512
"""How long an answer may get where the client sets no limit."""

MAX_ITEMS = 2000
MAX_TOOLS = 128
_NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class Part(BaseModel):
    """One part of a message; only text is understood."""

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""

    def plain(self) -> str:
        """Its text."""
        return self.text or self.refusal


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


# A union with str would make two complaints out of one mistake, and the first of them the wrong.
Content = Annotated[list[Part], BeforeValidator(_as_parts, json_schema_input_type=str | list[Part])]


class MessageItem(BaseModel):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(BaseModel):
    """A function that the model called."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: str


class OutputItem(BaseModel):
    """What that function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(BaseModel):
    """What another model thought; left out."""

    type: Literal["reasoning"]


def _kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else "message"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class FunctionTool(BaseModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def to_tool(self) -> types.Tool:
        """The tool as the engine takes it."""
        nothing = {"type": "object", "properties": {}}
        return types.Tool(self.name, self.description or "", self.parameters or nothing)


class NamedChoice(BaseModel):
    """This function has to be called."""

    type: Literal["function"]
    name: str


class AllowedChoice(BaseModel):
    """Only these of the tools may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1)]


class TextFormat(BaseModel):
    """What the text must be."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str | None, Field(pattern=_NAME)] = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(BaseModel):
    """Options of the text."""

    format: TextFormat | None = None


class Reasoning(BaseModel):
    """Accepted and without effect: the models that are served do not think aloud."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(BaseModel):
    """The body of `POST /v1/responses`."""

    model_config = ConfigDict(extra="ignore")

    model: str
    input: Annotated[
        list[Item],
        Field(max_length=MAX_ITEMS),
        BeforeValidator(_as_items, json_schema_input_type=str | list[Item]),
    ]
    instructions: str | None = None
    tools: Annotated[list[FunctionTool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Annotated[int | None, Field(ge=1, le=2**31)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None

    @field_validator("background", "conversation", "prompt")
    @classmethod
    def _nothing(cls, value: Any) -> Any:
        if value:
            raise ValueError("is not supported; leave it out")
        return value

    @property
    def is_parallel(self) -> bool:
        """Whether several functions may be called at once."""
        return self.parallel_tool_calls is not False

    def to_request(self, history: Sequence[Item]) -> types.Request:
        """The request as the engine takes it. history: the items before the input.

        Raises ApiError where items or tools do not fit together.
        """
        messages = to_messages([*history, *self.input])
        if self.instructions:
            messages.insert(0, types.Message("system", self.instructions))
        if not messages:
            raise ApiError(400, "the input is empty; say something", param="input")
        tools = self._allowed_tools()
        return types.Request(
            tuple(messages),
            max_new_tokens=self.max_output_tokens or DEFAULT_MAX_TOKENS,
            sampling=types.SamplingParams(
                temperature=self.temperature or 0.0,
                top_p=1.0 if self.top_p is None else self.top_p,
            ),
            tools=tuple(tool.to_tool() for tool in tools),
            grammar=self._grammar(tools),
        )

    def _allowed_tools(self) -> list[FunctionTool]:
        tools = self.tools or []
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ApiError(400, "two tools have the same name", param="tools")
        choice = self.tool_choice
        wanted = {
            tool.name
            for tool in (
                [choice] if isinstance(choice, NamedChoice) else getattr(choice, "tools", [])
            )
        }
        if unknown := sorted(wanted - set(names)):
            message = f"tool_choice names '{unknown[0]}', which is not among the tools"
            raise ApiError(400, message, param="tool_choice")
        if choice == "required" and not tools:
            raise ApiError(400, "tool_choice asks for a tool and there are none", param="tools")
        if choice == "none":
            return []
        return [tool for tool in tools if not wanted or tool.name in wanted]

    def _grammar(self, tools: Sequence[FunctionTool]) -> types.Grammar | None:
        choice = self.tool_choice
        if choice == "required" or getattr(choice, "mode", "") == "required":
            return types.ToolGrammar("required", None, self.is_parallel)
        if isinstance(choice, NamedChoice):
            return types.ToolGrammar("required", choice.name, parallel=False)
        format_ = self.text.format if self.text else None
        if format_ is not None and format_.type == "json_object":
            return types.JsonObjectGrammar()
        if format_ is not None and format_.type == "json_schema":
            if format_.schema_ is None:
                raise ApiError(400, "a json_schema format needs a schema", param="text.format")
            return types.JsonSchemaGrammar(json.dumps(format_.schema_))
        if tools and not self.is_parallel:
            return types.ToolGrammar("auto", parallel=False)
        return None


def to_messages(items: Sequence[Item]) -> list[types.Message]:
    """Items as messages. Raises ApiError where calls and outputs do not match."""
    messages: list[types.Message] = []
    calls: list[types.ToolCall] = []
    outputs: dict[str, str] = {}
    for item in items:
        match item:
            case CallItem():
                if outputs:
                    _answer(messages, calls, outputs)
                if any(call.call_id == item.call_id for call in calls):
                    raise ApiError(400, f"call_id '{item.call_id}' comes twice", param="input")
                calls.append(types.ToolCall(item.call_id, item.name, item.arguments or "{}"))
            case OutputItem():
                if all(call.call_id != item.call_id for call in calls):
                    message = f"there is no function_call with call_id '{item.call_id}' before it"
                    raise ApiError(400, message, param="input")
                outputs[item.call_id] = _plain(item.output)
            case MessageItem():
                _answer(messages, calls, outputs)
                role: types.Role = "system" if item.role == "developer" else item.role
                messages.append(types.Message(role, _plain(item.content)))
            case ReasoningItem():
                pass
    _answer(messages, calls, outputs)
    return messages


def _answer(
    messages: list[types.Message], calls: list[types.ToolCall], outputs: dict[str, str]
) -> None:
    """Add the calls that are waiting, and what they returned, in order."""
    if not calls:
        return
    missing = [call.call_id for call in calls if call.call_id not in outputs]
    if missing:
        message = f"the function_call with call_id '{missing[0]}' has no function_call_output"
        raise ApiError(400, message, param="input")
    said = ""
    if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        said = messages.pop().content
    messages.append(types.Message("assistant", said, tuple(calls)))
    messages += [types.Message("tool", outputs[call.call_id]) for call in calls]
    calls.clear()
    outputs.clear()


def _plain(content: Sequence[Part]) -> str:
    return "".join(part.plain() for part in content)
