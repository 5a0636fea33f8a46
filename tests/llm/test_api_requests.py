"""What clients may send and must not: bodies that other servers refused, dropped or failed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from llm.tokenizer import Tokenizer
from llm.types import (
    Message,
    ToolCall,
    ToolGrammar,
)
from tests.llm.api_server import (
    BODY,
    MESSAGES,
    Api,
    Real,
    real_engine,
    tiny_tokenizer,
)

TIMER: Any = {"type": "function", "function": {"name": "timer", "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
NULLS = ("tools", "tool_choice", "response_format", "stop", "logit_bias", "n", "stream_options")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def real(api: Api, tokenizer: Tokenizer) -> Iterator[Real]:
    with real_engine(api, tokenizer, "Hello there.") as real:
        yield real


def plain_request(api: Api) -> Any:
    """What the engine gets of a request with nothing special in it."""
    assert api.post(BODY).status_code == 200
    return api.request


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
    ],
)
def test_a_turn_of_calls_alone_is_taken_and_kept(api: Api, turn: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "timer", "arguments": ""}}
    tool = {"role": "tool", "tool_call_id": "c", "content": '{"left": 3}'}
    api.create(messages=[*MESSAGES, turn | {"tool_calls": [call]}, tool])
    assert api.request.messages[1:] == (
        Message("assistant", "", (ToolCall("c", "timer", "{}"),)),
        Message("tool", '{"left": 3}'),
    )


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_contents_may_come_in_parts(api: Api, role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    api.create(messages=[{"role": role, "content": parts, "tool_call_id": "c"}, *MESSAGES])
    ours = {"developer": "system", "function": "tool"}.get(role, role)
    assert api.request.messages[0] == Message(ours, "ab")  # type: ignore[arg-type]


def test_what_only_concerns_others_is_ignored(api: Api) -> None:
    ignored = {
        "mode": "chat",
        "nextEdit": True,
        "store": True,
        "user": "me",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "verbosity": "low",
        "prediction": None,
        "moderation": None,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
        "top_k": -1,
        "functions": [],
        "audio": None,
        "web_search_options": None,
        "something_new": [1],
        "reasoning_effort": "xhigh",
    }
    assert api.post({**BODY, **ignored}).status_code == 200
    assert api.request == plain_request(api)


def test_null_and_empty_are_absent(api: Api) -> None:
    body = {**BODY, **dict.fromkeys(NULLS)}
    assert api.post(body).status_code == 200
    asked = api.request
    assert api.post({**BODY, "tools": [], "stop": []}).status_code == 200
    assert asked == api.request == plain_request(api)


def test_what_a_client_packs_into_extra_body_counts(api: Api) -> None:
    assert api.post({**BODY, "extra_body": {"seed": 3, "temperature": 1}}).status_code == 200
    assert (api.request.sampling.seed, api.request.sampling.temperature) == (3, 1.0)


@pytest.mark.parametrize(
    "effort", ["none", "instant", "minimal", "low", "medium", "high", "xhigh", "max", None]
)
def test_efforts_and_summaries(api: Api, effort: str | None) -> None:
    asked = {"reasoning_effort": effort, "reasoning_summary": True, "reasoning_summary_wait": True}
    answer = api.post({**BODY, **asked}).json()
    assert answer["reasoning_summary"] == {"content": None, "status": "unavailable"}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert "reasoning" not in answer["choices"][0]["message"]
    assert api.chunks(**asked)[-1]["reasoning_summary"]["status"] == "unavailable"
    assert "reasoning_summary" not in api.post(BODY).json()


# Refusals


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "messages.0"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        (
            {
                "tools": [TIMER],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"top_k": -2}, "top_k"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"stop": [3]}, "stop.0"),
    ],
)
def test_a_refusal_names_its_parameter(api: Api, change: Any, param: str) -> None:
    response = api.post({**BODY, **change})
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["param"].startswith(param.removesuffix(".-1"))
    assert "[" not in error["param"]


def test_too_long_a_prompt_is_refused_before_it_waits(real: Real) -> None:
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 3000}]}),
        ("completions", {"prompt": "x" * 3000}),
    ):
        response = real.api.post({"model": "tiny", "stream": True, **body}, path)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == next(iter(body))
    assert real.runner.num_forwards == 0


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"type": "array", "uniqueItems": True},
        {"$ref": "https://example.org/schema.json"},
        {"type": "string", "pattern": "(?=a)"},
        {"type": "whatever"},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_schema_that_cannot_be_kept_is_refused_at_once(
    real: Real, schema: Any, stream: bool
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = real.api.post({**BODY, "response_format": wanted, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert real.runner.num_forwards == 0


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 3},
        {"properties": []},
        {"properties": {"a": 3}},
        {"properties": {"a": {"enum": 3}}},
        {"properties": {"a": {"type": 3}}},
        {"properties": {"a": {"type": ["a", {}]}}},
        {"type": "array"},
        {"required": 3},
    ],
)
def test_parameters_that_are_no_schema_are_refused(real: Real, parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    response = real.api.post({**BODY, "tools": [tool], "max_tokens": 100})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "tools"


# Formats, with an engine that would rather write something else


POINT = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 99}}}
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}, "kind": {"const": "dot"}},
        "required": ["at", "kind"],
        "additionalProperties": False,
        "$defs": {"point": POINT | {"required": ["x"], "additionalProperties": False}},
    },
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_schema_inside_json_schema_is_what_counts(real: Real, schema: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    (choice,) = real.api.create(response_format=wanted, max_tokens=120).choices
    jsonschema.validate(json.loads(choice.message.content), schema)


def test_required_is_a_call_even_beside_a_format(real: Real) -> None:
    (choice,) = real.api.create(
        tools=[TIMER],
        tool_choice="required",
        response_format={"type": "json_object"},
        max_tokens=150,
        parallel_tool_calls=False,
    ).choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "timer"
    assert isinstance(json.loads(call.function.arguments), dict)
    assert call.id.startswith("call_")


def test_not_in_parallel_reaches_the_engine(api: Api) -> None:
    api.create(tools=[TIMER], tool_choice="required", parallel_tool_calls=False)
    assert api.request.grammar == ToolGrammar("required", parallel=False)
