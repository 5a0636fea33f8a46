from __future__ import annotations

import asyncio

import numpy as np
import pytest

from llm.types import Message
from tests.voice.test_conversation import Call
from voice import wire
from voice.ask_cli import SAMPLE
from voice.assistant import Assistant
from voice.audio import read_audio
from voice.dialogue import SendAudio
from voice.events import TurnOutcome
from voice.harness import FRAME_SAMPLES, converse, frames_of, paced, silence


def test_frames_are_20_ms_and_hold_all_samples() -> None:
    samples = np.arange(1_000, dtype=np.float32)
    frames = list(frames_of(samples))
    assert {len(frame) for frame in frames} == {FRAME_SAMPLES}
    np.testing.assert_array_equal(np.concatenate(frames)[:1_000], samples)
    assert list(frames_of(silence(0))) == []


def test_paced_frames_are_all_frames() -> None:
    async def collect() -> list[float]:
        return [float(frame[0]) async for frame in paced(np.arange(960, dtype=np.float32), speed=9)]

    assert asyncio.run(collect()) == [0, 320, 640]


@pytest.mark.models
def test_a_recorded_question_is_heard_answered_and_remembered(assistant: Assistant) -> None:
    call = Call()
    samples = np.concatenate([silence(0.5), read_audio(SAMPLE), silence(8)])

    async def main() -> None:
        call.counters = await converse(
            assistant.pipeline,
            paced(samples),
            lambda at, what: call.left.append((at, what)),
            history=call.history,
        )

    asyncio.run(main())
    _, transcript = call.one(wire.Transcript)
    assert transcript.text == "What is the capital of France?"
    assert call.one(wire.TurnDone)[1].outcome is TurnOutcome.ANSWERED
    assert call.of(SendAudio)
    question, answer = call.history.messages()
    assert question == Message("user", transcript.text)
    assert "Paris" in answer.content
    assert call.counters is not None
    assert call.counters.num_speculated >= 1
