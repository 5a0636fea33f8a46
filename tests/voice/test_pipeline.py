"""The turn with fakes for every stage: slow ones, failing ones, ones that hang up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from llm.types import (
    Committed,
    Event,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    Provisional,
    QueueFullError,
    Request,
    Revised,
    ToolCall,
    Usage,
)
from voice.asr import Transcript
from voice.events import (
    AnswerGuess,
    AnswerText,
    Heard,
    Samples,
    Speech,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
)
from voice.pipeline import Pipeline
from voice.tts import Utterance
from voice.vad import VadStream

SPEECH = np.full(16_000, 0.9, np.float32)
SILENCE = np.zeros(16_000, np.float32)
USAGE = Usage(num_prompt_tokens=5, num_completion_tokens=4, num_forwards=3)
DONE = Finished(FinishReason.STOP, USAGE)
ANSWER: tuple[Event, ...] = (
    Provisional(0, "Yes maybe"),
    Committed("Yes."),
    Revised(4, " It"),
    ToolCall("1", "clock", "{}"),
    Committed(" It is"),
    Committed(" Paris."),
    DONE,
)


class FakeVad:
    def stream(self) -> VadStream:
        return self

    def probability(self, window: Samples) -> float:
        return float(np.abs(window).max())


@dataclass
class FakeRecogniser:
    text: str = " Where is it? "
    error: Exception | None = None

    def transcribe(self, samples: Samples) -> Transcript:
        if self.error:
            raise self.error
        return Transcript(self.text)


@dataclass
class FakeGeneration:
    """Gives out `events`; hangs at `None` for ever, and raises exceptions among them."""

    events: Sequence[Event | Exception | None]
    aborted: bool = False
    at_end: bool = False

    def abort(self) -> None:
        self.aborted = True

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            await asyncio.sleep(0)
            if event is None:
                self.at_end = True
                await asyncio.Event().wait()
            elif isinstance(event, Exception):
                raise event
            else:
                yield event


@dataclass
class FakeLanguageModel:
    events: Sequence[Event | Exception | None] = ANSWER
    error: Exception | None = None
    requests: list[Request] = field(default_factory=list)
    generations: list[FakeGeneration] = field(default_factory=list)

    def submit(self, request: Request) -> FakeGeneration:
        if self.error:
            raise self.error
        self.requests.append(request)
        self.generations.append(FakeGeneration(self.events))
        return self.generations[-1]


@dataclass
class FakeSynthesiser:
    """Says one sample for each character; `gate` holds it up until it is set."""

    rate_hz: int = 22_050
    error: Exception | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def speak(self, text: str) -> Utterance:
        assert self.gate.wait(timeout=10)
        if self.error:
            raise self.error
        self.said.append(text)
        return Utterance(np.ones(len(text), np.float32), ())


@dataclass
class Stage:
    """The fakes of one test and the pipeline around them."""

    recogniser: FakeRecogniser = field(default_factory=FakeRecogniser)
    model: FakeLanguageModel = field(default_factory=FakeLanguageModel)
    synthesiser: FakeSynthesiser = field(default_factory=FakeSynthesiser)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(FakeVad(), self.recogniser, self.model, self.synthesiser, 99, "Be brief.")

    def play(
        self, samples: Samples | None = SPEECH, text: str | None = None, *, speak: bool = True
    ) -> list[TurnEvent]:
        """All events of a whole turn; nothing may be left running after it."""

        async def collect() -> list[TurnEvent]:
            run = self.pipeline.run(7, samples, text, (), speak=speak)
            events = [event async for event in run]
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return events

        events = asyncio.run(collect())
        assert [type(event) for event in events].count(TurnEnded) == 1
        assert isinstance(events[-1], TurnEnded)
        assert {event.turn for event in events} == {7}
        return events


def ended(events: list[TurnEvent]) -> TurnEnded:
    assert isinstance(events[-1], TurnEnded)
    return events[-1]


def test_a_spoken_turn_from_ears_to_mouth() -> None:
    stage = Stage()
    events = stage.play()
    assert events[0] == Heard(7, "Where is it?")
    shown = [event for event in events if isinstance(event, AnswerGuess | AnswerText)]
    assert shown == [
        AnswerGuess(7, 0, "Yes maybe"),
        AnswerText(7, "Yes."),
        AnswerGuess(7, 4, " It", revised=True),
        AnswerText(7, " It is"),
        AnswerText(7, " Paris."),
    ]
    spoken = [event for event in events if isinstance(event, Speech)]
    assert [(s.clause, len(s.samples), s.rate_hz) for s in spoken] == [
        ("Yes.", 4, 22_050),
        ("It is Paris.", 12, 22_050),
    ]
    assert (ended(events).outcome, ended(events).usage) == (TurnOutcome.ANSWERED, USAGE)
    assert ended(events).error is None


def test_the_request_holds_the_prompt_the_history_and_the_question() -> None:
    stage = Stage()
    history = (Message("user", "Hi"), Message("assistant", "Hello"))

    async def go() -> None:
        async for _ in stage.pipeline.run(1, None, " And now? ", history):
            pass

    asyncio.run(go())
    (request,) = stage.model.requests
    expected = (Message("system", "Be brief."), *history, Message("user", "And now?"))
    assert (request.messages, request.max_new_tokens) == (expected, 99)


def test_times_are_in_order_and_say_which_stages_ran() -> None:
    times = ended(Stage().play()).times
    assert times.audio_ms == 1_000
    assert times.vad_ms is not None and times.asr_ms is not None
    assert times.first_commit_ms is not None and times.first_audio_ms is not None
    assert times.vad_ms + times.asr_ms <= times.first_commit_ms <= times.first_audio_ms
    assert times.first_audio_ms <= times.total_ms
    typed = ended(Stage().play(None, "Where?", speak=False)).times
    assert (typed.audio_ms, typed.vad_ms, typed.asr_ms, typed.first_audio_ms) == (None,) * 4
    assert typed.first_commit_ms is not None


def test_without_speaking_the_voice_is_not_asked() -> None:
    stage = Stage()
    events = stage.play(speak=False)
    assert not any(isinstance(event, Speech) for event in events)
    assert stage.synthesiser.said == []


def test_only_what_can_be_spoken_is_spoken_and_in_words() -> None:
    stage = Stage(model=FakeLanguageModel([Committed("**Done.**\n\U0001f600\nBye."), DONE]))
    clauses = [event.clause for event in stage.play() if isinstance(event, Speech)]
    assert stage.synthesiser.said == ["Done.", "Bye."]
    assert clauses[0] == "**Done.**"


@pytest.mark.parametrize("samples", [SILENCE, np.zeros(0, np.float32)])
def test_silence_is_no_speech_and_asks_nobody(samples: Samples) -> None:
    stage = Stage()
    events = stage.play(samples)
    assert [type(event) for event in events] == [TurnEnded]
    assert (ended(events).outcome, ended(events).times.asr_ms) == (TurnOutcome.NO_SPEECH, None)
    assert stage.model.requests == []


@pytest.mark.parametrize(("samples", "text"), [(SPEECH, None), (None, "  ")])
def test_nothing_understood_is_no_speech(samples: Samples | None, text: str | None) -> None:
    stage = Stage(recogniser=FakeRecogniser(text=" "))
    assert ended(stage.play(samples, text)).outcome is TurnOutcome.NO_SPEECH
    assert stage.model.requests == []


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        (
            Stage(recogniser=FakeRecogniser(error=RuntimeError("out of memory"))),
            "The speech recogniser failed: out of memory",
        ),
        (
            Stage(synthesiser=FakeSynthesiser(error=ValueError("no such phoneme"))),
            "The voice failed: no such phoneme",
        ),
        (
            Stage(model=FakeLanguageModel(error=InvalidRequestError("it is too long"))),
            "The question was not taken: it is too long.",
        ),
        (
            Stage(model=FakeLanguageModel(error=QueueFullError("3 are waiting; retry later"))),
            "The question was not taken: 3 are waiting; retry later.",
        ),
        (
            Stage(model=FakeLanguageModel([Committed("Yes."), OSError("gone")])),
            "The language model failed: gone",
        ),
        (
            Stage(model=FakeLanguageModel([Committed("Yes. It")])),
            "The language model stopped in the middle of the answer.",
        ),
        (
            Stage(model=FakeLanguageModel([Finished(FinishReason.ERROR, USAGE, "Bad weights.")])),
            "Bad weights.",
        ),
    ],
)
def test_a_stage_that_fails_ends_the_turn_with_a_sentence(stage: Stage, sentence: str) -> None:
    end = ended(stage.play())
    assert (end.outcome, end.error) == (TurnOutcome.FAILED, sentence)
    assert all(generation.aborted for generation in stage.model.generations)


def test_a_voice_that_fails_aborts_a_model_that_hangs() -> None:
    stage = Stage(
        model=FakeLanguageModel([Committed("Yes. It is so."), None]),
        synthesiser=FakeSynthesiser(error=ValueError("mute")),
    )
    assert ended(stage.play()).outcome is TurnOutcome.FAILED
    assert stage.model.generations[0].aborted


def test_a_fault_of_our_own_is_logged_and_still_ends_the_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(model=FakeLanguageModel(error=KeyError("ours")))
    end = ended(stage.play())
    assert (end.outcome, end.error) == (
        TurnOutcome.FAILED,
        "Something inside Ember went wrong.",
    )
    assert "KeyError" in caplog.text


def test_an_engine_that_cancels_is_told_apart() -> None:
    stage = Stage(model=FakeLanguageModel([Finished(FinishReason.CANCELLED, USAGE)]))
    assert ended(stage.play()).outcome is TurnOutcome.CANCELLED


def test_text_goes_on_while_the_voice_is_slow() -> None:
    stage = Stage()
    stage.synthesiser.gate.clear()

    async def go() -> None:
        seen: list[TurnEvent] = []
        async for event in stage.pipeline.run(1, None, "Where?", ()):
            seen.append(event)
            if event == AnswerText(1, " Paris."):
                assert not any(isinstance(earlier, Speech) for earlier in seen)
                stage.synthesiser.gate.set()
        assert stage.synthesiser.said == ["Yes.", "It is Paris."]

    asyncio.run(go())


def test_closing_the_generator_aborts_the_answer_and_leaves_no_task() -> None:
    stage = Stage(model=FakeLanguageModel([Committed("Yes. It is"), None]))

    async def go() -> None:
        run = stage.pipeline.run(1, None, "Where?", ())
        async for event in run:
            if isinstance(event, Speech):
                break
        await run.aclose()
        assert stage.model.generations[0].aborted
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


def test_cancelling_the_reader_aborts_the_answer_and_leaves_no_task() -> None:
    stage = Stage(model=FakeLanguageModel([Committed("Yes. It is"), None]))

    async def read(heard: asyncio.Event) -> None:
        async for event in stage.pipeline.run(1, None, "Where?", ()):
            if isinstance(event, Speech):
                heard.set()

    async def go() -> None:
        heard = asyncio.Event()
        reader = asyncio.create_task(read(heard))
        await heard.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert stage.model.generations[0].aborted
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


def test_turns_may_overlap() -> None:
    stage = Stage()

    async def turn(number: int) -> list[TurnEvent]:
        return [event async for event in stage.pipeline.run(number, SPEECH, None, ())]

    async def go() -> None:
        for number, events in enumerate(await asyncio.gather(*map(turn, range(5)))):
            assert {event.turn for event in events} == {number}
            assert ended(events).outcome is TurnOutcome.ANSWERED

    asyncio.run(go())
