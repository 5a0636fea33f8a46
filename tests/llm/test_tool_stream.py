"""Calls leave the text, whole or not, however the text is cut into pieces."""

from __future__ import annotations

import pytest

from llm.engine.tool_stream import ToolStream
from llm.types import Committed, Event, ToolCall

CALL = '<tool_call>{"name": "get", "arguments": {"city": "Rome"}}</tool_call>'


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Committed))


@pytest.mark.parametrize("size", range(1, 12))
def test_a_call_is_one_event_and_no_text(size: int) -> None:
    text = f"Sure. {CALL}\n{CALL}"
    stream = ToolStream()
    events: list[Event] = []
    for start in range(0, len(text), size):
        events += stream.filter([Committed(text[start : start + size])])
    events += stream.finish()
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert said(events).strip() == "Sure."
    assert [(call.name, call.arguments) for call in calls] == [("get", '{"city": "Rome"}')] * 2
    assert len({call.call_id for call in calls}) == 2


@pytest.mark.parametrize("length", range(1, len(CALL)))
def test_a_call_that_is_cut_off_is_nothing(length: int) -> None:
    stream = ToolStream()
    events = stream.filter([Committed("So " + CALL[:length])])
    events += stream.finish(cut_off=True)
    assert said(events) == "So "
    assert not stream.num_calls


def test_what_only_looked_like_a_call_is_said() -> None:
    stream = ToolStream()
    events = stream.filter([Committed("a <tool")]) + stream.finish()
    assert said(events) == "a <tool"
