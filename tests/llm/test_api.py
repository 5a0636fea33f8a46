"""The OpenAI routes, over a real socket, read by the real client and byte by byte."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from llm.api.body_limits import MAX_BODY_BYTES
from llm.types import (
    Committed,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    Provisional,
    QueueFullError,
    Revised,
    SamplingParams,
)
from tests.llm.api_server import BODY, MESSAGES, Api
from tests.llm.fakes import STOP, USAGE, FakeEngine, asking, comes_true


def test_openai_client_reads_a_whole_answer(api: Api) -> None:
    completion = api.client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=9, stop=["\n", "END"]
    )
    assert completion.choices[0].message.content == "Hello there."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 10
    (request,) = api.engine.requests
    assert request.messages == (Message("user", "Hi"),)
    assert (request.max_new_tokens, request.stop) == (9, ("\n", "END"))


def test_openai_client_reads_a_stream(api: Api) -> None:
    stream = api.client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 7
    assert len({chunk.id for chunk in chunks}) == 1


def test_openai_client_lists_the_model(api: Api) -> None:
    assert [model.id for model in api.client.models.list()] == ["tiny"]


def test_the_stream_has_exactly_these_events(api: Api) -> None:
    api.engine = FakeEngine(
        Provisional(0, "Hey"), Revised(0, "Hallo"), Committed(""), Committed("Grüß"), STOP
    )
    lines = api.lines()
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Grüß"}, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    ]
    assert all("usage" not in chunk for chunk in chunks)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_usage_comes_last_with_no_choices(api: Api) -> None:
    last = api.lines(stream_options={"include_usage": True})[-2]
    chunk = json.loads(last.removeprefix("data: "))
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "reasoning_tokens": 0,
        "cached_input_tokens": 0,
    }


def test_the_role_comes_before_the_first_word(api: Api) -> None:
    api.engine = FakeEngine(Provisional(0, "wait"))  # commits nothing until it is aborted
    with httpx.stream("POST", f"{api.url}/chat/completions", json={**BODY, "stream": True}) as r:
        first = next(r.iter_lines())
        assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["role"]


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_aborts_the_generation(api: Api, stream: bool) -> None:
    api.engine = FakeEngine(Committed("Once upon a time"))
    with asking(api.port, "/v1/chat/completions", {**BODY, "stream": stream}) as client:
        assert api.engine.submitted.wait(5)
        if stream:
            assert client.recv(100)
    (generation,) = api.engine.generations
    assert comes_true(generation.aborted.is_set, api.client.models.list)


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"n": 9}, "n", "less than or equal to 8"),
        ({"tools": [{"type": "function"}]}, "tools", "required"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        ({"logit_bias": {"1": 200}}, "logit_bias", "less than or equal to 100"),
        ({"modalities": ["text", "audio"]}, "modalities", "'text'"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'system'"),
        ({"messages": "Hi"}, "messages", "array"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"stop": ""}, "stop", "must not be empty"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"model": 1}, "model", "string"),
    ],
)
def test_what_is_not_served_is_refused(
    api: Api, change: dict[str, Any], param: str, says: str
) -> None:
    response = api.post({**BODY, **change})
    error = response.json()["error"]
    assert response.status_code == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    assert says in error["message"]
    assert not api.engine.requests


@pytest.mark.parametrize(
    "change",
    [
        {"n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"temperature": 1.3, "top_p": 0.9, "seed": 3, "user": "me", "metadata": {}},
        {"logprobs": False, "modalities": ["text"], "stop": None, "stream": None},
    ],
)
def test_what_changes_nothing_is_accepted(api: Api, change: dict[str, Any]) -> None:
    assert api.post({**BODY, **change}).status_code == 200


def test_sampling_reaches_the_engine(api: Api) -> None:
    change = {"temperature": 0.8, "top_p": 0.9, "seed": 3, "presence_penalty": 1}
    assert api.post({**BODY, **change, "frequency_penalty": -0.5}).status_code == 200
    assert api.post(BODY).status_code == 200
    sampled, plain = (request.sampling for request in api.engine.requests)
    assert sampled == SamplingParams(
        temperature=0.8, top_p=0.9, seed=3, presence_penalty=1, frequency_penalty=-0.5
    )
    assert plain == SamplingParams()


def test_messages_reach_the_engine_as_text(api: Api) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ]
    body = {**BODY, "messages": messages, "max_tokens": 5, "max_completion_tokens": 6, "stop": "x"}
    assert api.post(body).status_code == 200
    (request,) = api.engine.requests
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "Be brief."),
        ("user", "ab"),
        ("assistant", ""),
        ("assistant", ""),
    ]
    assert (request.max_new_tokens, request.stop) == (6, ("x",))


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequestError("too long"), 400, "invalid_request_error"),
        (QueueFullError("full"), 503, "server_error"),
    ],
)
def test_what_the_engine_refuses(api: Api, error: Exception, status: int, kind: str) -> None:
    api.engine = FakeEngine(error=error)
    response = api.post({**BODY, "stream": True})
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert response.json()["error"]["message"] == str(error)


def test_an_unknown_model_is_named(api: Api) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist; use 'tiny'"):
        api.client.chat.completions.create(model="gpt-9", messages=MESSAGES)


def test_before_the_model_is_loaded(api: Api) -> None:
    api.engine = None
    with pytest.raises(openai.InternalServerError, match="still loading"):
        api.client.chat.completions.create(model="tiny", messages=MESSAGES)
    with pytest.raises(openai.InternalServerError, match="still loading"):
        api.client.models.list()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud800", "messages": []}', b"[" * 10_000]
)
def test_a_body_that_is_no_request(api: Api, body: bytes) -> None:
    response = httpx.post(f"{api.url}/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_without_end(api: Api) -> None:
    response = httpx.post(f"{api.url}/chat/completions", content=b" " * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413


def test_a_failure_is_an_error_whole_or_streamed(api: Api) -> None:
    broken = Finished(FinishReason.ERROR, USAGE, "out of memory")
    api.engine = FakeEngine(Committed("He"), broken)
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        api.client.chat.completions.create(model="tiny", messages=MESSAGES)
    with pytest.raises(openai.APIError, match="out of memory"):
        list(api.client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
    assert api.lines()[-1] == "data: [DONE]"


def test_a_shutdown_ends_the_streams(api: Api) -> None:
    api.engine = FakeEngine(Committed("Once"))
    url = f"{api.url}/chat/completions"
    with httpx.stream("POST", url, json={**BODY, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        (generation,) = api.engine.generations
        assert not generation.finished
        generation.loop.call_soon_threadsafe(api.service.abort_all)
        assert "data: [DONE]" in list(lines)


def test_lengths_are_told(api: Api) -> None:
    api.engine = FakeEngine(Committed("a"), Finished(FinishReason.LENGTH, USAGE))
    assert api.post(BODY).json()["choices"][0]["finish_reason"] == "length"
