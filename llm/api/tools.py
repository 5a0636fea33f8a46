"""Tools and answer formats of a chat request, from OpenAI's JSON to what the engine takes."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from llm import types

NAME = r"^[a-zA-Z0-9_-]{1,64}$"
MAX_TOOLS = 128


class FunctionDefinition(BaseModel):
    """What a tool is called, does and takes."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(BaseModel):
    """A tool on offer; arguments always follow the schema, whether strict or not."""

    type: Literal["function"]
    function: FunctionDefinition

    def to_tool(self) -> types.Tool:
        """The tool as the engine takes it."""
        function = self.function
        parameters = function.parameters or {"type": "object", "properties": {}}
        return types.Tool(function.name, function.description or "", parameters)


class NamedFunction(BaseModel):
    """The function that must be called."""

    name: str


class NamedTool(BaseModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class FunctionCall(BaseModel):
    """A call that the assistant made: its arguments are JSON in text."""

    name: str
    arguments: str

    @model_validator(mode="after")
    def _arguments_are_json(self) -> FunctionCall:
        try:
            value = json.loads(self.arguments or "{}")
        except ValueError as error:
            raise ValueError("arguments must be a JSON object in text") from error
        if not isinstance(value, dict):
            raise ValueError("arguments must be a JSON object in text")
        return self


class CallPart(BaseModel):
    """A tool call in an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall

    def to_call(self) -> types.ToolCall:
        """The call as the engine takes it, spaced as the model was taught."""
        arguments = json.dumps(json.loads(self.function.arguments or "{}"), ensure_ascii=False)
        return types.ToolCall(self.id, self.function.name, arguments)


class JsonSchema(BaseModel):
    """A schema under its name; it is kept to, whether strict or not."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(BaseModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(BaseModel):
    """A JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(BaseModel):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


def format_grammar(wanted: ResponseFormat | None) -> types.Grammar | None:
    """What an answer format asks of the text."""
    match wanted:
        case JsonObjectFormat():
            return types.JsonObjectGrammar()
        case JsonSchemaFormat(json_schema=schema):
            return types.JsonSchemaGrammar(json.dumps(schema.schema_ or {}))
    return None


def tool_grammar(choice: ToolChoice | None, *, parallel: bool) -> types.ToolGrammar | None:
    """What a tool choice asks of the text; None where no tool may be called."""
    match choice:
        case "none":
            return None
        case "required":
            return types.ToolGrammar("required", parallel=parallel)
        case NamedTool(function=function):
            return types.ToolGrammar("required", function.name, parallel=False)
    return types.ToolGrammar("auto", parallel=parallel)
