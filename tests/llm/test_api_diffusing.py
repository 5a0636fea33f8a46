"""Answers shown while they diffuse: whole snapshots, the last of which is the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.api.diffusing import DiffusingChoice
from llm.api.stream import Completion
from llm.types import (
    Committed,
    Finished,
    FinishReason,
    Provisional,
    Revised,
    TokenLogprobs,
    ToolCall,
)
from tests.llm.api_server import Api, serve, text_of
from tests.llm.fakes import STOP, USAGE, FakeEngine

EVENTS = (
    Provisional(0, "Hallo wor"),
    Revised(0, "Hello wor"),
    Committed("Hello"),
    Provisional(5, " world"),
    Committed(" there."),
    STOP,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    yield from serve()


@pytest.fixture
def api(server: Api) -> Api:
    server.engine = FakeEngine(*EVENTS)
    return server


def frames(chunks: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [
        (c["choices"][0]["delta"]["content"], c["diffusion_meta"]["diffusion_progress"])
        for c in chunks
        if "diffusion_meta" in c
    ]


def test_each_frame_is_the_whole_answer_so_far(api: Api) -> None:
    chunks = api.chunks(diffusing=True, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert frames(chunks) == [
        ("Hallo wor", 0.0),
        ("Hello wor", 0.0),
        ("Hello world", 0.4545),
        ("Hello there.", 0.99),
        ("Hello there.", 1.0),
    ]
    assert chunks[-2]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == USAGE.num_completion_tokens


def test_who_does_not_ask_can_append(api: Api) -> None:
    assert text_of(api.chunks()) == "Hello there."
    assert all("diffusion_meta" not in c for c in api.chunks(diffusing=False))
    whole = api.create(extra_body={"diffusing": True})
    assert whole.choices[0].message.content == "Hello there."


def test_calls_come_as_ever(api: Api) -> None:
    call = ToolCall("call_1", "f", "{}")
    api.answer(call, Finished(FinishReason.TOOL_CALLS, USAGE))
    tool = {"type": "function", "function": {"name": "f"}}
    shown = api.chunks(diffusing=True, tools=[tool])
    plain = api.chunks(tools=[tool])
    assert [c["choices"] for c in shown] == [c["choices"] for c in plain]


def test_what_failed_is_never_shown_as_complete(api: Api) -> None:
    api.answer(Committed("Hel"), Finished(FinishReason.ERROR, USAGE, "no"))
    *lines, error, _ = api.lines(diffusing=True)
    assert "no" in error
    assert all('"diffusion_progress": 1.0' not in line for line in lines)


def test_log_probabilities_are_told_as_text_commits(api: Api) -> None:
    api.answer(Committed("a", (TokenLogprobs(5, -1.0, ()),)), STOP)
    chunks = api.chunks(diffusing=True, logprobs=True)
    told = [c["choices"][0]["logprobs"]["content"] for c in chunks if "logprobs" in str(c)]
    assert [[t["token"] for t in tokens] for tokens in told] == [["<5>"]]


PARTS = st.one_of(
    st.text(max_size=3).map(Committed),
    st.builds(Provisional, st.integers(0, 5), st.text(max_size=4)),
    st.builds(Revised, st.integers(0, 5), st.text(max_size=4)),
)


@given(st.lists(PARTS))
def test_the_last_frame_is_the_answer_and_only_it_is_complete(parts: list[Any]) -> None:
    choice = DiffusingChoice(Completion("id", 1, "tiny", lambda _: b""), 0)
    chunks = [chunk for event in [*parts, STOP] for chunk in choice.take(event)]
    answer = "".join(part.text for part in parts if isinstance(part, Committed))
    told = frames(chunks)
    if answer:
        assert told[-1] == (answer, 1.0)
        told.pop()
    assert all(0 <= progress < 1 for _, progress in told)
