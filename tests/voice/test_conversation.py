"""Hands-free conversations in simulated time: frames move the clock, models answer between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llm.types import Message
from tests.voice.session_fakes import ANSWER, HEARD, RATE_HZ, FakePipeline, voice
from voice import wire
from voice.answering import FlushAudio
from voice.conversation import Conversation
from voice.dialogue import History, Send, SendAudio
from voice.endpoint import EndpointSettings, TurnTaking
from voice.events import LISTEN_RATE_HZ, Samples, TurnOutcome
from voice.harness import converse, frames_of, silence
from voice.heard import INTERRUPTED
from voice.live import Live, Output
from voice.measures import Mark, TurnRecord

MS = LISTEN_RATE_HZ // 1_000
WHOLE = "".join(ANSWER)


@dataclass
class Call:
    """What left, with its time in samples, and the history."""

    history: History = field(default_factory=lambda: History(1_000))
    left: list[tuple[int, Output]] = field(default_factory=list)
    counters: Conversation | None = None
    records: list[TurnRecord] = field(default_factory=list)

    def of(self, kind: type) -> list[tuple[int, Any]]:
        """Messages or outputs of one kind, with their times."""
        return [
            (at, thing)
            for at, what in self.left
            if isinstance(thing := what.message if isinstance(what, Send) else what, kind)
        ]

    def one(self, kind: type) -> tuple[int, Any]:
        (only,) = self.of(kind)
        return only


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    monkeypatch.setattr("voice.live.asyncio.to_thread", inline)


def hold(pipeline: FakePipeline, *parts: Samples, settings: EndpointSettings | None = None) -> Call:
    call = Call()

    async def frames() -> AsyncIterator[Samples]:
        for frame in frames_of(np.concatenate(parts)):
            yield frame
            for _ in range(40):
                await asyncio.sleep(0)

    async def main() -> None:
        call.counters = await converse(
            pipeline,
            frames(),
            lambda at, what: call.left.append((at, what)),
            settings=settings or EndpointSettings(),
            history=call.history,
            measured=call.records.append,
            clock=lambda: 0.0,
        )
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert pipeline.num_running == 0
    return call


QUESTION = (silence(1), voice(1))
END = 2 * LISTEN_RATE_HZ
"""Where the speech of QUESTION ends."""


def test_a_question_is_answered_without_a_button() -> None:
    call = hold(FakePipeline(), *QUESTION, silence(2))
    kinds = [type(what.message).__name__ for _, what in call.left if isinstance(what, Send)]
    told = [kind for kind in kinds if kind not in {"Hearing", "AnswerProvisional"}]
    assert told == [
        *["Transcript", "AnswerRevised", "AnswerCommitted", "AudioStart", "AnswerCommitted"],
        *["AudioEnd", "TurnDone"],
    ]
    assert call.one(wire.Transcript)[1] == wire.Transcript(1, HEARD)
    assert sum(len(audio.samples) for _, audio in call.of(SendAudio)) == round(0.2 * RATE_HZ)
    assert call.history.messages() == (Message("user", HEARD), Message("assistant", WHOLE))


def test_the_turn_is_taken_200_ms_after_the_soft_end() -> None:
    call = hold(FakePipeline(), *QUESTION, silence(2))
    at, _ = call.one(wire.Transcript)
    assert 296 * MS <= at - END <= (296 + 20 + 32) * MS
    times = call.one(wire.TurnDone)[1].times
    assert times.first_audio_ms == times.first_commit_ms == pytest.approx((at - END) / MS, abs=33)
    assert times.asr_ms < times.first_audio_ms


def test_every_turn_leaves_a_record() -> None:
    call = hold(FakePipeline(spoken_s=8.0), *QUESTION, silence(2.4), voice(1.5), silence(10))
    interrupted, whole = call.records
    assert interrupted.ttfa_ms == interrupted.endpoint_delay_ms == pytest.approx(320, abs=25)
    assert interrupted.barge_in_stop_ms == pytest.approx(340, abs=25)
    assert interrupted.num_words_unheard > 0
    assert whole.num_words_unheard == 0
    assert whole.barge_in_stop_ms is None
    assert whole.marks[Mark.ENDED] == pytest.approx(8_400, abs=100)


def test_nothing_of_a_speculation_leaves_before_its_turn() -> None:
    pipeline = FakePipeline()
    call = hold(pipeline, *QUESTION, silence(0.2))
    assert len(pipeline.asked) == 1, "the answer is being made"
    assert {type(what.message) for _, what in call.left if isinstance(what, Send)} == {wire.Hearing}
    assert not call.of(SendAudio)


def test_the_words_are_shown_while_they_are_said() -> None:
    pipeline = FakePipeline()
    pipeline.recogniser.texts = ["What", "What is", "What is an"]
    call = hold(pipeline, *QUESTION, silence(1))
    told = [message for _, message in call.of(wire.Hearing)]
    assert [m.text for m in told] == ["", "What", "What is", "What is an", HEARD, HEARD]
    assert [m.speaking for m in told] == [True, True, True, True, True, False]
    assert call.counters is not None
    assert call.counters.num_reused_transcripts == 1


def test_the_last_partial_is_the_final_transcript() -> None:
    pipeline = FakePipeline()
    call = hold(pipeline, *QUESTION, silence(2))
    heard = pipeline.recogniser.heard
    # One each 250 ms, and one that began with the silence; none after the soft end.
    assert len(heard) == 4
    assert 1.2 <= len(heard[-1]) / LISTEN_RATE_HZ <= 1.27  # with 200 ms before the speech
    assert call.counters is not None
    assert call.counters.num_reused_transcripts == 1


def test_a_short_pause_does_not_end_the_turn_and_different_words_drop_the_work() -> None:
    pipeline = FakePipeline()
    pipeline.recogniser.texts = ["What"] * 4 + ["What is an ember good for?"] * 9
    call = hold(pipeline, *QUESTION, silence(0.2), voice(1), silence(2))
    assert call.one(wire.Transcript)[1] == wire.Transcript(2, "What is an ember good for?")
    assert [text for _, text, _ in pipeline.asked] == ["What", "What is an ember good for?"]
    assert call.counters is not None
    assert (call.counters.num_speculated, call.counters.num_dropped) == (2, 1)


def test_a_noise_in_the_pause_keeps_the_work() -> None:
    pipeline = FakePipeline()
    call = hold(pipeline, *QUESTION, silence(0.2), voice(0.13), silence(2))
    assert call.one(wire.Transcript)[1] == wire.Transcript(1, HEARD)
    assert len(pipeline.asked) == 1
    assert call.counters is not None
    assert call.counters.num_dropped == 0


def test_unsure_speech_is_held_longer() -> None:
    pipeline = FakePipeline()
    assert pipeline.endpoint is not None
    pipeline.endpoint.complete = 0.2
    call = hold(pipeline, *QUESTION, silence(3))
    at, _ = call.one(wire.Transcript)
    assert 1_400 * MS <= at - END <= 1_460 * MS


def test_fixed_silence_asks_no_model() -> None:
    pipeline = FakePipeline(endpoint=None)
    call = hold(
        pipeline, *QUESTION, silence(2), settings=EndpointSettings(TurnTaking.SMART, silence_ms=900)
    )
    at, _ = call.one(wire.Transcript)
    assert 900 * MS <= at - END <= 960 * MS


def test_an_interruption_ducks_stops_and_is_answered() -> None:
    pipeline = FakePipeline(spoken_s=8.0)
    call = hold(pipeline, *QUESTION, silence(2.4), voice(1.5), silence(10))
    began = END + round(2.4 * LISTEN_RATE_HZ)
    at, gain = call.of(wire.AudioGain)[0]
    assert gain == wire.AudioGain(1, 0.2)
    assert at - began <= 160 * MS
    at, stopped = call.one(wire.AudioStop)
    assert at - began <= 900 * MS
    paused_at, _ = call.one(wire.AudioPause)
    assert 250 * MS <= paused_at - began <= 360 * MS
    assert {flushed for _, flushed in call.of(FlushAudio)} == {FlushAudio(1)}
    # Two seconds of the first clause's four were heard.
    assert ANSWER[0].startswith(stopped.heard)
    assert 2 <= len(stopped.heard.split()) <= 4
    kept = stopped.heard + INTERRUPTED
    assert call.history.messages()[1] == Message("assistant", kept)
    assert [message.turn for _, message in call.of(wire.Transcript)] == [1, 2]
    assert pipeline.asked[1][2] == (Message("user", HEARD), Message("assistant", kept))


def test_an_answer_that_is_still_made_is_cancelled_by_an_interruption() -> None:
    call = hold(FakePipeline(holds=True, spoken_s=8.0), *QUESTION, silence(2.4), voice(1.5))
    assert call.of(wire.TurnDone)[0][1].outcome is TurnOutcome.CANCELLED
    kinds = [type(what.message).__name__ for _, what in call.left if isinstance(what, Send)]
    stopped = kinds.index("AudioStop")
    assert [k for k in kinds[stopped:] if k != "Hearing"][:3] == [
        "AudioStop",
        "AudioEnd",
        "TurnDone",
    ]


def test_a_backchannel_does_not_interrupt() -> None:
    pipeline = FakePipeline(spoken_s=8.0)
    pipeline.recogniser.texts = [HEARD] * 4 + ["Mhm."] * 5
    call = hold(pipeline, *QUESTION, silence(2.4), voice(0.3), silence(9))
    assert [message.gain for _, message in call.of(wire.AudioGain)] == [0.2]
    assert not call.of(wire.AudioStop)
    # The answer goes on at the beginning of the word in which it was paused.
    _, resumed = call.one(wire.AudioResume)
    audio = [len(audio.samples) for _, audio in call.of(SendAudio)]
    assert 1_900 <= resumed.at_ms <= 2_500
    assert audio[-1] == pytest.approx((8.0 - resumed.at_ms / 1_000) * RATE_HZ, abs=RATE_HZ / 500)
    assert call.history.messages()[1] == Message("assistant", WHOLE)
    assert len(pipeline.asked) == 1


def test_a_turn_that_was_taken_too_soon_is_given_back() -> None:
    pipeline = FakePipeline(spoken_s=8.0)
    pipeline.recogniser.texts = ["Tell me"] * 4 + ["Tell me about embers."] * 99
    call = hold(pipeline, *QUESTION, silence(0.8), voice(1), silence(10))
    assert [message.text for _, message in call.of(wire.Transcript)] == [
        "Tell me",
        "Tell me about embers.",
    ]
    assert pipeline.asked[1][2] == (), "the first answer did not count"
    assert call.history.messages()[0] == Message("user", "Tell me about embers.")


def test_a_cough_just_after_the_answer_began_does_not_stop_it() -> None:
    pipeline = FakePipeline(spoken_s=8.0)
    call = hold(pipeline, *QUESTION, silence(0.8), voice(0.4), silence(10))
    assert len(call.of(wire.AudioPause)) == len(call.of(wire.AudioResume)) == 1
    assert len(pipeline.asked) == 1
    assert call.history.messages()[1] == Message("assistant", WHOLE)


def test_a_cough_makes_the_answer_softer_for_a_moment() -> None:
    pipeline = FakePipeline(spoken_s=8.0)
    pipeline.recogniser.texts = [HEARD] * 4 + [""] * 5
    call = hold(pipeline, *QUESTION, silence(2.4), voice(0.13), silence(9))
    assert [message.gain for _, message in call.of(wire.AudioGain)] == [0.2, 1.0]
    assert not call.of(wire.AudioPause)
    assert call.history.messages()[1] == Message("assistant", WHOLE)


def test_a_transport_that_keeps_time_takes_the_answer_and_hears_no_echo_as_speech() -> None:
    pipeline = FakePipeline(spoken_s=2.0)
    live, told = quiet_live(pipeline)

    async def main() -> list[Samples]:
        taken = []
        async with asyncio.TaskGroup() as tasks:
            call = live(tasks.create_task)
            for frame in frames_of(np.concatenate([*QUESTION, silence(4)])):
                call.hear(frame)
                for _ in range(40):
                    await asyncio.sleep(0)
                taken.append(call.take(RATE_HZ // 50))
            call.end()
        return taken

    sound = np.concatenate(asyncio.run(main()))
    audible = np.flatnonzero(sound)
    first_ms = audible[0] / RATE_HZ * 1_000
    assert 2_296 <= first_ms <= 2_360
    assert (audible[-1] - audible[0]) / RATE_HZ == pytest.approx(2.0, abs=0.05)
    assert not any(isinstance(what, SendAudio) for what in told)


def quiet_live(pipeline: FakePipeline) -> tuple[Callable[..., Live], list[Output]]:
    told: list[Output] = []

    async def room() -> None:
        return

    def make(start: Callable[..., asyncio.Task[None]]) -> Live:
        return Live(
            pipeline,
            EndpointSettings(),
            History(1_000),
            keeps_time=True,
            out=told.append,
            start=start,
            has_room=room,
            clock=lambda: 0.0,
        )

    return make, told


def test_a_broken_recogniser_ends_the_turn_and_not_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = FakePipeline()
    transcribe = pipeline.recogniser.transcribe
    broken = 5

    def sometimes(samples: Samples) -> Any:
        nonlocal broken
        broken -= 1
        if broken >= 0:
            raise ZeroDivisionError("a bug")
        return transcribe(samples)

    pipeline.recogniser.transcribe = sometimes  # type: ignore[method-assign]
    call = hold(pipeline, *QUESTION, silence(3.5), voice(1), silence(1))
    assert len(call.of(wire.Transcript)) == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_bug_in_the_pipeline_fails_the_turn_and_not_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = hold(FakePipeline(breaks=True), *QUESTION, silence(2), voice(1), silence(1))
    outcomes = [message.outcome for _, message in call.of(wire.TurnDone)]
    assert outcomes == [TurnOutcome.FAILED, TurnOutcome.FAILED]
    assert "ZeroDivisionError" in caplog.text


def test_noise_that_gives_no_words_is_ignored() -> None:
    pipeline = FakePipeline()
    pipeline.recogniser.texts = [""] * 9
    call = hold(pipeline, *QUESTION, silence(2))
    assert not pipeline.asked
    assert not call.of(wire.Transcript)
    assert [message.text for _, message in call.of(wire.Hearing)] == ["", ""]
