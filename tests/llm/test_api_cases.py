"""Mistakes of other servers that broke real clients, each as a test of ours.

Cases with a model in them are served by the real engine on scripted forwards, since they are about
what happens between tokens and chunks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from llm.tokenizer import Tokenizer
from llm.types import (
    Committed,
    Finished,
    FinishReason,
    TokenLogprobs,
    ToolCall,
)
from tests.llm.api_server import (
    BODY,
    Api,
    Real,
    real_engine,
    text_of,
    tiny_tokenizer,
)
from tests.llm.fakes import STOP, USAGE, asking

TIMER: Any = {"type": "function", "function": {"name": "timer", "parameters": {"type": "object"}}}
CALLS = (ToolCall("call_a", "timer", "{}"), ToolCall("call_b", "timer", '{"s": 1}'))
CALLED = Finished(FinishReason.TOOL_CALLS, USAGE)
NULLS = ("tools", "tool_choice", "response_format", "stop", "logit_bias", "n", "stream_options")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def real(api: Api, tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Iterator[Real]:
    with real_engine(api, tokenizer, getattr(request, "param", "Hello there.")) as real:
        yield real


def answers(text: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("real", [text], indirect=True)


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


# Streams


@answers("one STOPP two STOP three")
def test_nothing_of_a_stop_string_leaks_and_no_delta_is_empty(real: Real) -> None:
    chunks = real.api.chunks(stop="STOP two", max_tokens=60)
    assert text_of(chunks) == "one STOPP two STOP three"
    chunks = real.api.chunks(stop=["STOP t"], max_tokens=60)
    assert text_of(chunks) == "one STOPP two "
    assert all(delta.get("content") for delta in deltas(chunks)[1:-1])


@answers("Grüße 👋🏽 мир")
def test_characters_are_never_split(real: Real) -> None:
    chunks = real.api.chunks(max_tokens=60)
    assert text_of(chunks) == "Grüße 👋🏽 мир"
    assert all("\ufffd" not in delta.get("content", "") for delta in deltas(chunks))


def test_the_role_comes_once_and_nothing_is_null(api: Api) -> None:
    api.answer(Committed("a"), Committed("b"), *CALLS, CALLED)
    told = deltas(api.chunks(tools=[TIMER]))
    assert [delta.get("role") for delta in told] == ["assistant", *[None] * (len(told) - 1)]
    assert "null" not in json.dumps(told)
    assert told[-1] == {}


def test_one_call_a_chunk_each_with_its_index(api: Api) -> None:
    api.answer(*CALLS, CALLED)
    told = [d["tool_calls"] for d in deltas(api.chunks(tools=[TIMER])) if "tool_calls" in d]
    assert [len(calls) for calls in told] == [1, 1, 1, 1]
    assert [calls[0]["index"] for calls in told] == [0, 0, 1, 1]
    assert ["id" in calls[0] for calls in told] == [True, False, True, False]
    # Without arguments they are an object still, and text in any case.
    assert told[1][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_not_sent_unasked(api: Api, options: Any) -> None:
    chunks = api.chunks(stream_options=options)
    assert all(chunk["choices"] for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_with_no_choices(api: Api) -> None:
    *_, last = api.chunks(stream_options={"include_usage": True, "include_obfuscation": True})
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 10


def test_no_pings_and_no_ids(api: Api) -> None:
    assert all(line.startswith("data: ") for line in api.lines())


def test_all_chunks_are_of_one_answer(api: Api) -> None:
    chunks = api.chunks(stream_options={"include_usage": True})
    keys = ("id", "object", "created", "model", "system_fingerprint")
    assert len({tuple(chunk[key] for key in keys) for chunk in chunks}) == 1
    assert chunks[0]["system_fingerprint"] == api.create().system_fingerprint


def test_an_error_within_a_stream_is_seen(api: Api) -> None:
    api.answer(Committed("He"), Finished(FinishReason.ERROR, USAGE, "it broke"))
    with pytest.raises(openai.APIError, match="it broke"):
        list(api.create(stream=True))
    *_, error, done = api.lines()
    assert set(json.loads(error.removeprefix("data: "))["error"]) >= {"message", "type", "code"}
    assert done == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_a_hang_up_frees_the_slot_within_a_step(real: Real, stream: bool) -> None:
    real.runner.hold()
    body = {**BODY, "stream": stream, "max_tokens": 200}
    with asking(real.api.port, "/v1/chat/completions", body):
        deadline = time.monotonic() + 5
        while not real.runner.open_slots:
            assert time.monotonic() < deadline
    # The prompt is being computed. The abort happens on the server's loop, which these visit.
    for _ in range(20):
        real.api.client.models.list()
    real.runner.go(1)
    deadline = time.monotonic() + 5
    while real.runner.open_slots:
        assert time.monotonic() < deadline
    assert real.runner.num_forwards == 1


# Ends


@pytest.mark.parametrize(
    ("choice", "events", "reason"),
    [
        ("auto", (*CALLS, CALLED), "tool_calls"),
        ("required", (*CALLS, CALLED), "tool_calls"),
        ({"type": "function", "function": {"name": "timer"}}, (*CALLS, CALLED), "tool_calls"),
        ("auto", (Committed("x"), STOP), "stop"),
        ("auto", (CALLS[0], Finished(FinishReason.LENGTH, USAGE)), "length"),
        ("auto", (Finished(FinishReason.LENGTH, USAGE),), "length"),
    ],
)
def test_why_it_ended_streamed_and_whole(api: Api, choice: Any, events: Any, reason: str) -> None:
    api.answer(*events)
    (whole,) = api.create(tools=[TIMER], tool_choice=choice).choices
    last = api.chunks(tools=[TIMER], tool_choice=choice)[-1]
    assert whole.finish_reason == last["choices"][0]["finish_reason"] == reason


def test_the_newer_limit_counts(real: Real) -> None:
    answer = real.api.create(max_completion_tokens=3, max_tokens=50)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


# The rest


def test_log_probabilities_without_alternatives(api: Api) -> None:
    half = TokenLogprobs(7, float("-inf"), ())
    api.answer(Committed("", (half,)), Committed("é", (half,)), STOP)
    api.engine.token_bytes = lambda _: b"\xc3"
    tokens = api.create(logprobs=True).choices[0].logprobs.content
    assert [(t.top_logprobs, t.bytes, t.logprob) for t in tokens] == [([], [0xC3], -9999.0)] * 2


def test_the_same_seed_says_the_same(real: Real) -> None:
    options = {"seed": 5, "temperature": 2, "max_tokens": 30}
    texts = {real.api.create(**options).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1
    assert real.api.create(**options | {"seed": 6}).choices[0].message.content not in texts


@answers("Hello there.")
def test_the_whole_is_what_was_streamed(real: Real) -> None:
    for options in ({}, {"max_tokens": 4}, {"stop": "the"}, {"n": 2, "seed": 1, "temperature": 1}):
        streamed = real.api.chunks(**options)
        whole = real.api.create(**options)
        for choice in whole.choices:
            told = [c for c in streamed if c["choices"][0]["index"] == choice.index]
            assert choice.message.content == text_of(told)
            assert choice.finish_reason == told[-1]["choices"][0]["finish_reason"]


def test_accept_is_not_negotiated(api: Api) -> None:
    response = httpx.post(
        f"{api.url}/chat/completions",
        json={**BODY, "stream": True},
        headers={"accept": "application/json"},
    )
    assert response.headers["content-type"].startswith("text/event-stream")
