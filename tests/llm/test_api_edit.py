"""Edits and merges of code: the tags of the prompt, what is answered, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llm.api.edit import cleaned, section
from llm.types import Committed
from tests.llm.api_server import Api, serve, text_of
from tests.llm.fakes import STOP, FakeEngine

REGION = "<|code_to_edit|>x = 1<|cursor|><|/code_to_edit|>"
FILE = f"<|current_file_content|>\ncurrent_file_path: a.py\n{REGION}\n<|/current_file_content|>"
HISTORY = "<|edit_diff_history|>\n<|/edit_diff_history|>"
MERGE = "<|original_code|>a<|/original_code|><|update_snippet|>b<|/update_snippet|>"
EDIT, APPLY = "edit/completions", "apply/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    yield from serve()


@pytest.fixture
def api(server: Api) -> Api:
    server.engine = FakeEngine(Committed("```python\nx ="), Committed(" 2\n```"), STOP)
    return server


def body(content: Any, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "mercury-coder", "messages": messages, **changes}


@pytest.mark.parametrize("content", [FILE + HISTORY, HISTORY + FILE])
def test_an_edit_is_the_region_alone(api: Api, content: str) -> None:
    answer = api.post(body(content), EDIT).json()
    assert answer["object"] == "edit.completion"
    assert set(answer) >= {"id", "created", "model", "choices", "usage"}
    assert answer["choices"][0]["message"]["content"] == "x = 2"
    system, user = api.request.messages
    assert system.role == "system"
    assert user.content == content
    assert api.request.max_new_tokens == 1024


def test_a_streamed_edit_is_a_chat_stream(api: Api) -> None:
    chunks = api.chunks(EDIT, messages=body(FILE)["messages"])
    assert [c["choices"][0]["delta"] for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "x = 2"},
        {},
    ]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}


def test_a_merge_is_the_whole_code(api: Api) -> None:
    api.answer(Committed("<|updated_code|>\nab<|/updated_code|>"), STOP)
    answer = api.post(body([{"type": "text", "text": MERGE}]), APPLY).json()
    assert answer["choices"][0]["message"]["content"] == "ab"
    assert text_of(api.chunks(APPLY, messages=body(MERGE)["messages"])) == "ab"


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        (EDIT, "make it nice", "<|current_file_content|>, <|code_to_edit|>"),
        (EDIT, FILE.replace("<|/code_to_edit|>", ""), "tags: <|code_to_edit|>"),
        (APPLY, FILE, "<|original_code|>, <|update_snippet|>"),
    ],
)
def test_missing_tags_are_named(api: Api, path: str, content: str, says: str) -> None:
    response = api.post(body(content), path)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "messages"
    assert "must contain the required prompt tags" in error["message"]
    assert error["message"].endswith(says)
    assert not api.engine.requests


def test_there_is_one_message(api: Api) -> None:
    twice = body(FILE)
    twice["messages"] *= 2
    assert api.post(twice, EDIT).json()["error"]["param"] == "messages"
    system = {**body(FILE), "messages": [{"role": "system", "content": FILE}]}
    assert api.post(system, EDIT).status_code == 400


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("x", "x"),
        ("  x\n", "  x\n"),
        ("```\nx\n```", "x"),
        ("```py\nx\n\n```\n", "x\n"),
        ("<|code_to_edit|>\nx<|cursor|>y<|/code_to_edit|>", "xy"),
        ("a ```b``` c", "a ```b``` c"),
        ("None", "None"),
    ],
)
def test_wrappings_are_taken_off(answer: str, code: str) -> None:
    assert cleaned(answer) == code


def test_sections() -> None:
    assert section("a<|t|>b<|/t|>c", "t") == "b"
    assert section("<|t|><|/t|>", "t") == ""
    assert section("<|t|>b", "t") is None
    assert section("b<|/t|>", "t") is None
