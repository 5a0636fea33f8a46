"""What `/v1/responses` makes of a request before the engine gets it, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from llm.types import (
    InvalidRequestError,
    JsonObjectGrammar,
    JsonSchemaGrammar,
    Message,
    QueueFullError,
    ToolCall,
    ToolGrammar,
)
from tests.llm.fakes import FakeEngine
from tests.llm.responses_server import TOOLS, Api, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    yield from serve(tmp_path_factory.mktemp("responses"))


@pytest.fixture
def api(server: Api) -> Api:
    server.engine = FakeEngine()
    return server


@pytest.mark.parametrize(
    ("change", "grammar", "tools"),
    [
        ({}, None, 0),
        ({"tools": TOOLS}, None, 2),
        ({"tools": TOOLS, "parallel_tool_calls": False}, ToolGrammar("auto", None, False), 2),
        ({"tools": TOOLS, "tool_choice": "none"}, None, 0),
        ({"tools": TOOLS, "tool_choice": "auto"}, None, 2),
        ({"tools": TOOLS, "tool_choice": "required"}, ToolGrammar("required"), 2),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "lights"}},
            ToolGrammar("required", "lights", False),
            1,
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "lights"}],
                },
            },
            ToolGrammar("required"),
            1,
        ),
        ({"text": {"format": {"type": "text"}}}, None, 0),
        ({"text": {"format": {"type": "json_object"}, "verbosity": "low"}}, JsonObjectGrammar(), 0),
        (
            {
                "tools": TOOLS,
                "text": {
                    "format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}}
                },
            },
            JsonSchemaGrammar('{"type": "null"}'),
            2,
        ),
    ],
)
def test_what_the_answer_must_be(api: Api, change: Any, grammar: Any, tools: int) -> None:
    assert api.post(**change).status_code == 200
    assert api.request.grammar == grammar
    assert len(api.request.tools) == tools


def test_items_become_messages(api: Api) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Two?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "1"}],
        },
        {"role": "user", "content": "And?"},
    ]
    assert api.post(input=items).status_code == 200
    assert api.request.messages == (
        Message("system", "Be brief."),
        Message("user", "Two?"),
        Message("assistant", "Both.", (ToolCall("a", "f", "{}"), ToolCall("b", "g", "{}"))),
        Message("tool", "1"),
        Message("tool", "2"),
        Message("user", "And?"),
    )


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "1"}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"input": []}, "input", "empty"),
        ({"input": [CALL]}, "input", "'a' has no function_call_output"),
        ({"input": [CALL, {"role": "user", "content": "x"}, OUTPUT]}, "input", "has no function"),
        ({"input": [OUTPUT]}, "input", "no function_call with call_id 'a'"),
        ({"input": [CALL, CALL, OUTPUT]}, "input", "twice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input_te"),
        ({"input": 1}, "input", "array"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'function'"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "same name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "pattern"),
        ({"tool_choice": "required"}, "tools", "there are none"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "'x'"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "schema"),
        ({"background": True}, "background", "not supported"),
        ({"conversation": "c"}, "conversation", "not supported"),
        ({"temperature": 3}, "temperature", "less than"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "no response 'resp_x'"),
    ],
)
def test_what_cannot_be_answered_is_refused(api: Api, change: Any, param: str, says: str) -> None:
    response = api.post(**change)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    assert says in error["message"]
    assert api.engine is not None
    assert not api.engine.requests


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud800", "input": ""}'])
def test_a_body_that_is_no_request(api: Api, body: bytes) -> None:
    response = httpx.post(f"{api.url}/responses", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequestError("too long"), 400, "invalid_request_error"),
        (QueueFullError("full"), 503, "server_error"),
    ],
)
def test_what_the_engine_refuses(api: Api, error: Exception, status: int, kind: str) -> None:
    api.engine = FakeEngine(error=error)
    response = api.post(stream=True)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert (response.headers.get("retry-after") is not None) == (status == 503)


def test_before_the_model_is_loaded_and_an_unknown_one(api: Api) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist"):
        api.client.responses.create(model="gpt-9", input="Hi")
    api.engine = None
    with pytest.raises(openai.InternalServerError, match="still loading"):
        api.client.responses.create(model="tiny", input="Hi")
