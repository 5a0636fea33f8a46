"""Random conversations: whatever is said when, each turn is told in order and ends once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.voice.session_fakes import FakePipeline, voice
from tests.voice.test_conversation import Call, hold
from voice import wire
from voice.dialogue import SendAudio
from voice.harness import silence

TEXTS = st.sampled_from(["", "Mhm.", "Wait.", "What is it?", "what is it", "What is it called?"])
PARTS = st.lists(
    st.one_of(
        st.floats(0.05, 1.2).map(voice), st.floats(0.05, 0.4).map(silence), st.just(silence(1.5))
    ),
    max_size=8,
)
PIPELINES = st.builds(
    FakePipeline,
    holds=st.booleans(),
    breaks=st.booleans(),
    spoken_s=st.sampled_from([0.02, 0.8, 4.0]),
)


@given(PARTS, st.lists(TEXTS, max_size=40), st.floats(0, 1), PIPELINES)
@settings(max_examples=40, deadline=None)
def test_each_turn_is_told_in_order_and_ends_once(
    parts: list[Any], texts: list[str], complete: float, pipeline: FakePipeline
) -> None:
    async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    pipeline.recogniser.texts = texts
    assert pipeline.endpoint is not None
    pipeline.endpoint.complete = complete
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("voice.live.asyncio.to_thread", inline)
        call = hold(pipeline, silence(0.1), *parts, silence(3))
    check(call)


def check(call: Call) -> None:
    asked = [message.turn for _, message in call.of(wire.Transcript)]
    done = [message.turn for _, message in call.of(wire.TurnDone)]
    assert asked == done == sorted(set(asked))
    assert [record.turn for record in call.records] == asked
    silenced: set[int] = set()
    sounding: set[int] = set()
    for at, what in call.left:
        assert at >= 0
        if isinstance(what, SendAudio):
            assert what.turn in sounding - silenced
            assert what.turn == max(sounding)
            continue
        match getattr(what, "message", None):
            case wire.AudioStart(turn):
                assert turn in asked
                assert turn not in sounding
                sounding.add(turn)
            case wire.AudioGain(turn) | wire.AudioPause(turn) | wire.AudioResume(turn):
                assert turn in sounding - silenced
            case wire.AudioStop(turn):
                assert turn in sounding - silenced
                silenced.add(turn)
    messages = call.history.messages()
    assert [m.role for m in messages] == ["user", "assistant"] * (len(messages) // 2)
    assert all(message.content for message in messages)
