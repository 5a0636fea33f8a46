from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.types import Usage
from voice import wire
from voice.events import StageTimes, TurnOutcome
from voice.wire import ErrorCode, WireError, parse_client, parse_server, serialise

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
QUESTION = TEXT.filter(lambda t: t.strip() and len(t) <= wire.MAX_QUESTION_CHARACTERS)
COUNT = st.integers(0, 2**53)
MS = st.none() | st.floats(0, 1e9)
TIMES = st.builds(StageTimes, MS, MS, MS, MS, MS, MS, st.floats(0, 1e9))
COUNTS = st.lists(COUNT).map(tuple)
USAGE = st.builds(Usage, COUNT, COUNT, COUNT, COUNT, COUNT, MS, st.floats(0, 1e9), COUNT, COUNTS)

CLIENT = st.one_of(
    st.builds(wire.SpeechStart),
    st.builds(wire.SpeechEnd),
    st.builds(wire.Question, QUESTION),
    st.builds(wire.Cancel),
    st.builds(wire.ListenStart, TEXT),
    st.builds(wire.ListenStop),
    st.builds(wire.Playback, COUNT, COUNT),
)
SERVER = st.one_of(
    st.builds(wire.SessionReady, COUNT, COUNT),
    st.builds(wire.Transcript, COUNT, TEXT),
    st.builds(wire.AnswerProvisional, COUNT, COUNT, TEXT),
    st.builds(wire.AnswerRevised, COUNT, COUNT, TEXT),
    st.builds(wire.AnswerCommitted, COUNT, TEXT),
    st.builds(wire.AudioStart, COUNT),
    st.builds(wire.AudioEnd, COUNT),
    st.builds(wire.Hearing, st.booleans(), TEXT),
    st.builds(wire.AudioGain, COUNT, st.floats(0, 1)),
    st.builds(wire.AudioPause, COUNT, COUNT),
    st.builds(wire.AudioResume, COUNT, COUNT),
    st.builds(wire.AudioStop, COUNT, COUNT, TEXT),
    st.builds(wire.TurnDone, COUNT, st.sampled_from(TurnOutcome), TIMES, st.none() | USAGE),
    st.builds(wire.ErrorMessage, st.sampled_from(ErrorCode), TEXT),
)


@given(CLIENT)
def test_client_messages_survive_the_way(message: wire.ClientMessage) -> None:
    assert parse_client(serialise(message)) == message


@given(SERVER)
def test_server_messages_survive_the_way(message: wire.ServerMessage) -> None:
    assert parse_server(serialise(message)) == message


@given(
    st.text(st.characters())
    | st.recursive(
        st.none() | st.booleans() | st.floats() | TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(TEXT | st.just("type"), inner),
    ).map(json.dumps)
)
def test_anything_else_is_refused_with_one_kind_of_error(text: str) -> None:
    with pytest.raises(WireError) as refused:
        parse_client(text)
    assert refused.value.code is ErrorCode.BAD_MESSAGE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "'type' must be one of speech.start, speech.end, text, cancel"),
        ('{"type": ["text"]}', "'type' must be one of"),
        ('{"type": "session.ready"}', "'type' must be one of"),
        ('{"type": "text"}', "exactly these keys: text"),
        ('{"type": "text", "text": "a", "more": 1}', "exactly these keys: text"),
        ('{"type": "cancel", "turn": 1}', "exactly these keys: none"),
        ('{"type": "text", "text": 1}', "'text' has a value of the wrong type"),
        ('{"type": "text", "text": " "}', "'text' is empty"),
        ('{"type": "text", "text": "\\ud800"}', "not a JSON object in UTF-8"),
        ('{"type": "text", "text": NaN}', "not a JSON object"),
        (json.dumps({"type": "text", "text": "x" * 4001}), "at most 4000"),
        ("[" * 100_000, "not a JSON object"),
        ('{"type": "text", "text": ' + "1" * 5000 + "}", "not a JSON object"),
    ],
)
def test_the_error_says_what_to_send(text: str, says: str) -> None:
    with pytest.raises(WireError, match=says.replace("[", r"\[")):
        parse_client(text)


@pytest.mark.parametrize(
    "change",
    [
        {"turn": True},
        {"turn": 1.0},
        {"turn": "1"},
        {"outcome": "ANSWERED"},
        {"times": None},
        {"times": {"total_ms": 1.0}},
        {"usage": {}},
        {"usage": []},
    ],
)
def test_nothing_is_converted(change: dict[str, Any]) -> None:
    done = wire.TurnDone(1, TurnOutcome.ANSWERED, StageTimes(), Usage())
    with pytest.raises(WireError):
        parse_server(json.dumps(json.loads(serialise(done)) | change))


def test_the_table_in_the_docstring_lists_every_message() -> None:
    rows = [line.split("|") for line in (wire.__doc__ or "").splitlines() if line.startswith("| ")]
    listed = {(row[1].strip(), row[2].strip(" `")): row[3].replace("`", "").strip() for row in rows}
    del listed["direction", "type"]
    assert listed == {
        (side, cls.TYPE): ", ".join(f.name for f in fields(cls))
        for side, union in (("client", wire.ClientMessage), ("server", wire.ServerMessage))
        for cls in get_args(union)
    }
