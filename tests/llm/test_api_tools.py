"""Tools, formats, several choices and log-probabilities, over a socket, with the real client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from llm.api.chat_chunks import ChatChoice, fold_chat
from llm.api.stream import Completion
from llm.types import (
    ChoiceGrammar,
    Committed,
    Finished,
    FinishReason,
    GrammarError,
    JsonObjectGrammar,
    JsonSchemaGrammar,
    Message,
    RegexGrammar,
    TokenLogprobs,
    Tool,
    ToolCall,
    ToolGrammar,
)
from tests.llm.api_server import MESSAGES, Api
from tests.llm.fakes import STOP, USAGE, FakeEngine

SCHEMA = {"type": "object", "properties": {"seconds": {"type": "integer"}}}
TIMER: Any = {
    "type": "function",
    "function": {"name": "set_timer", "description": "A timer.", "parameters": SCHEMA},
}
TEXT = {"type": "text"}
CALLS = (
    Committed("One moment."),
    ToolCall("call_1", "set_timer", '{"seconds": 5}'),
    ToolCall("call_2", "set_timer", '{"seconds": 6}'),
    Finished(FinishReason.TOOL_CALLS, USAGE),
)


def test_calls_come_whole(api: Api) -> None:
    api.engine = FakeEngine(*CALLS)
    (choice,) = api.create(tools=[TIMER]).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert [(c.id, c.function.arguments) for c in choice.message.tool_calls] == [
        ("call_1", '{"seconds": 5}'),
        ("call_2", '{"seconds": 6}'),
    ]
    assert api.request.tools == (Tool("set_timer", "A timer.", SCHEMA),)
    assert api.request.grammar == ToolGrammar("auto")


def test_a_call_without_words_has_null_content(api: Api) -> None:
    api.engine = FakeEngine(*CALLS[1:])
    assert api.create(tools=[TIMER]).choices[0].message.content is None


def test_streamed_calls_have_an_index_an_id_and_a_name(api: Api) -> None:
    api.engine = FakeEngine(*CALLS)
    chunks = list(api.create(tools=[TIMER], stream=True))
    deltas = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
    assert [(d.index, d.id, d.function.name, d.function.arguments) for d in deltas] == [
        (0, "call_1", "set_timer", ""),
        (0, None, None, '{"seconds": 5}'),
        (1, "call_2", "set_timer", ""),
        (1, None, None, '{"seconds": 6}'),
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "grammar"),
    [
        ("auto", ToolGrammar("auto")),
        ("required", ToolGrammar("required")),
        (
            {"type": "function", "function": {"name": "set_timer"}},
            ToolGrammar("required", "set_timer", parallel=False),
        ),
    ],
)
def test_tool_choice(api: Api, choice: Any, grammar: ToolGrammar) -> None:
    api.create(tools=[TIMER], tool_choice=choice)
    assert api.request.grammar == grammar


def test_no_tools_are_shown_where_none_may_be_called(api: Api) -> None:
    api.create(tools=[TIMER], tool_choice="none")
    assert (api.request.tools, api.request.grammar) == ((), None)


def test_one_call_at_a_time(api: Api) -> None:
    api.create(tools=[TIMER], parallel_tool_calls=False)
    assert api.request.grammar == ToolGrammar("auto", parallel=False)


def test_a_conversation_with_calls_and_results(api: Api) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    api.create(
        messages=[
            {"role": "developer", "content": [TEXT | {"text": "Be "}, TEXT | {"text": "kind."}]},
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"ok": true}'},
        ]
    )
    assert api.request.messages == (
        Message("system", "Be kind."),
        Message("user", "Go"),
        Message("assistant", "", (ToolCall("c1", "f", '{"a": 1}'),)),
        Message("tool", '{"ok": true}'),
    )


def test_formats(api: Api) -> None:
    api.create(response_format={"type": "json_object"})
    assert api.request.grammar == JsonObjectGrammar()
    wanted = {"name": "x", "schema": SCHEMA, "strict": True}
    api.create(response_format={"type": "json_schema", "json_schema": wanted})
    assert api.request.grammar == JsonSchemaGrammar(json.dumps(SCHEMA))
    api.create(extra_body={"guided_choice": ["yes", "no"]})
    assert api.request.grammar == ChoiceGrammar(("yes", "no"))
    api.create(extra_body={"guided_regex": "[ab]+"})
    assert api.request.grammar == RegexGrammar("[ab]+")


def test_parse_gives_the_clients_own_class(api: Api) -> None:
    class Timer(BaseModel):
        seconds: int

    api.engine = FakeEngine(Committed('{"seconds": 5}'), STOP)
    completion = api.client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Timer
    )
    assert completion.choices[0].message.parsed == Timer(seconds=5)


def test_what_cannot_be_enforced_is_refused_with_its_parameter(api: Api) -> None:
    api.engine = FakeEngine(error=GrammarError("'not' at json_schema cannot be enforced"))
    with pytest.raises(openai.BadRequestError) as caught:
        api.create(response_format={"type": "json_object"})
    assert caught.value.param == "response_format"
    assert "'not'" in str(caught.value)


def test_several_choices(api: Api) -> None:
    completion = api.create(n=3, seed=7, temperature=1)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert {choice.message.content for choice in completion.choices} == {"Hello there."}
    assert [request.sampling.seed for request in api.engine.requests] == [7, 8, 9]
    assert completion.usage.completion_tokens == 9
    assert completion.usage.prompt_tokens == 7
    chunks = list(api.create(n=2, stream=True))
    text = {0: "", 1: ""}
    for chunk in chunks:
        text[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert text == {0: "Hello there.", 1: "Hello there."}


def test_log_probabilities(api: Api) -> None:
    tokens = (TokenLogprobs(5, -0.25, ((5, -0.25), (6, float("-inf")))),)
    api.engine = FakeEngine(Committed("a", tokens), STOP)
    (choice,) = api.create(logprobs=True, top_logprobs=2).choices
    (token,) = choice.logprobs.content
    assert (token.token, token.logprob, token.bytes) == ("<5>", -0.25, list(b"<5>"))
    assert [t.logprob for t in token.top_logprobs] == [-0.25, -9999.0]
    assert api.request.sampling.num_logprobs == 2


@pytest.mark.parametrize(
    "options",
    [
        {"top_logprobs": 2},
        {"tool_choice": "required"},
        {"tools": [{"type": "function", "function": {"name": "has space"}}]},
        {"tools": [{"type": "web_search"}]},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_object"}, "extra_body": {"guided_regex": "a"}},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"n": 0},
        {"n": 99},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"1": 101}},
        {"extra_body": {"functions": [{"name": "f"}]}},
        {"modalities": ["audio"]},
    ],
)
def test_what_is_not_served_is_refused_by_name(api: Api, options: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.create(**options)
    assert caught.value.body["message"]  # type: ignore[index]
    assert not api.engine.requests


PIECES = st.lists(
    st.one_of(
        st.text(max_size=5).map(Committed),
        st.builds(ToolCall, st.just("call_1"), st.text(max_size=3), st.text(max_size=5)),
    )
)


@given(st.lists(PIECES, min_size=1, max_size=3))
def test_the_whole_is_the_fold_of_the_chunks(choices: list[list[Any]]) -> None:
    completion = Completion("id", 1, "tiny", lambda _: b"")
    writers = [ChatChoice(completion, index) for index in range(len(choices))]
    chunks = [chunk for writer in writers for chunk in writer.begin()]
    for writer, pieces in zip(writers, choices, strict=True):
        for piece in [*pieces, STOP]:
            chunks += writer.take(piece)
    whole = fold_chat([*chunks, completion.usage_chunk([USAGE] * len(choices), len(choices))])
    for choice, pieces in zip(whole["choices"], choices, strict=True):
        text = "".join(p.text for p in pieces if isinstance(p, Committed))
        calls = [(p.name, p.arguments) for p in pieces if isinstance(p, ToolCall)]
        told = [c["function"] for c in choice["message"].get("tool_calls", [])]
        assert (choice["message"]["content"] or "") == text
        assert [(c["name"], c["arguments"]) for c in told] == calls
        assert choice["finish_reason"] == "stop"
    assert whole["usage"]["prompt_tokens"] == USAGE.num_prompt_tokens
