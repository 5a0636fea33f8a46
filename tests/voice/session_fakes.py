"""A pipeline without models: it hears, guesses, commits and speaks what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm.types import Message, Usage
from tests.llm.fakes import FakeEngine
from voice.asr import Transcript
from voice.events import (
    LISTEN_RATE_HZ,
    AnswerGuess,
    AnswerText,
    Heard,
    Samples,
    Speech,
    StageTimes,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
)
from voice.vad import VadStream

RATE_HZ = 22_050
HEARD = "What is an ember?"
ANSWER = ("An ember is a glowing coal", " that stays when the flames are gone.")


def tone(duration_s: float, hz: float = 440.0) -> Samples:
    """A tone that is easy to hear and to recognise."""
    times = np.arange(int(duration_s * RATE_HZ)) / RATE_HZ
    return (0.3 * np.sin(2 * np.pi * hz * times)).astype(np.float32)


def voice(duration_s: float) -> Samples:
    """What a detector takes for speech: harmonics of 150 Hz."""
    times = np.arange(round(duration_s * LISTEN_RATE_HZ)) / LISTEN_RATE_HZ
    waves = [np.sin(2 * np.pi * 150 * k * times) / k for k in range(1, 10)]
    return (0.2 * np.sum(waves, axis=0)).astype(np.float32)


class FakeVad:
    """Takes loudness for the probability of speech."""

    def stream(self) -> VadStream:
        return self

    def probability(self, window: Samples) -> float:
        return float(np.abs(window).max() > 0.05)


@dataclass
class FakeRecogniser:
    """Hears HEARD in whatever is loud enough; `texts` are heard first, one each time."""

    texts: list[str] = field(default_factory=list)
    heard: list[Samples] = field(default_factory=list)

    def transcribe(self, samples: Samples) -> Transcript:
        self.heard.append(samples)
        return Transcript(self.texts.pop(0) if self.texts else HEARD)


@dataclass
class FakeEndpoint:
    """Always as sure as `complete` says."""

    complete: float = 0.99

    def probability(self, samples: Samples) -> float:
        return self.complete


@dataclass
class FakePipeline:
    """Answers with ANSWER.

    pause_s: between the steps, so that a browser can show them. holds: never ends by itself.
    breaks: raises in the middle. spoken_s: seconds of sound.
    """

    pause_s: float = 0.0
    holds: bool = False
    breaks: bool = False
    spoken_s: float = 0.2
    output_rate_hz: int = RATE_HZ
    vad: FakeVad = field(default_factory=FakeVad)
    recogniser: FakeRecogniser = field(default_factory=FakeRecogniser)
    endpoint: FakeEndpoint | None = field(default_factory=FakeEndpoint)
    asked: list[tuple[Samples | None, str | None, tuple[Message, ...]]] = field(
        default_factory=list
    )
    num_running: int = 0

    async def run(
        self,
        turn: int,
        samples: Samples | None,
        text: str | None,
        history: Sequence[Message],
        *,
        released: asyncio.Event | None = None,
    ) -> AsyncGenerator[TurnEvent, None]:
        self.asked.append((samples, text, tuple(history)))
        self.num_running += 1
        try:
            for event in self._events(turn, text):
                await asyncio.sleep(self.pause_s)
                yield event
            if self.breaks:
                raise ZeroDivisionError("a bug")
            if self.holds:
                await asyncio.Event().wait()
            times = StageTimes(
                asr_ms=85.0, first_commit_ms=212.0, first_audio_ms=340.0, total_ms=1250.0
            )
            yield TurnEnded(turn, TurnOutcome.ANSWERED, times, Usage(30, 14, 6))
        finally:
            self.num_running -= 1

    def _events(self, turn: int, text: str | None) -> list[TurnEvent]:
        first, second = ANSWER
        return [
            Heard(turn, text or HEARD),
            AnswerGuess(turn, 0, "An ember is a small"),
            AnswerGuess(turn, 12, "a glowing fire", revised=True),
            AnswerText(turn, first),
            Speech(turn, tone(self.spoken_s / 2), RATE_HZ, first),
            AnswerGuess(turn, len(first), " that stays when"),
            AnswerText(turn, second),
            Speech(turn, tone(self.spoken_s / 2, 330.0), RATE_HZ, second),
        ]


@dataclass
class FakeAssistant:
    """Loaded models that are none."""

    pipeline: FakePipeline = field(default_factory=FakePipeline)
    engine: FakeEngine = field(default_factory=FakeEngine)
    closed: bool = False

    def close(self) -> None:
        self.closed = True
