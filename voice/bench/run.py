"""Callers in real time: recordings go into conversations without a socket, and what comes back is
timed by the clock of the wall, so that a machine that does not keep up cannot hide it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llm.bench import machine_limits
from llm.bench.report import Report
from llm.config import ember_home
from llm.types import Message
from voice import wire
from voice.asr import Recogniser
from voice.assistant import Assistant
from voice.bench import figures
from voice.bench.corpus import Corpus, CorpusStore, Recording
from voice.bench.figures import SPEECH, Asked, Overlapped
from voice.bench.noises import cough, crowd, quiet_room, typing
from voice.config import Config
from voice.dialogue import Send, SendAudio
from voice.endpoint import Eagerness, EndpointSettings
from voice.events import LISTEN_RATE_HZ, AnswerText, Samples, TurnEvent
from voice.harness import FRAME_SAMPLES, converse
from voice.live import Output, Parts
from voice.smart_turn import EndpointModel
from voice.tts import PiperSynthesiser
from voice.vad import Vad

PATIENCE_S = 6.0
"""How long a caller waits for an answer."""

OVERLAP_AFTER_S = 0.8
"""How long an answer has sounded when something sounds over it."""

OVERLAP_WATCHED_S = 3.5
"""How long it is watched what the answer does then."""

_AUDIBLE = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. num_questions, num_paused: of the corpus, at most."""

    sessions: tuple[int, ...]
    num_questions: int
    num_paused: int
    num_noises: int
    eagerness: tuple[Eagerness, ...]


FULL = Plan((1, 4, 8), 1_000, 1_000, 5, (Eagerness.LOW, Eagerness.MEDIUM, Eagerness.HIGH))
QUICK = Plan((1,), 8, 4, 1, (Eagerness.MEDIUM,))


class _Timed:
    """The models of one caller; notes how long each answer takes to its first final text."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.ttft_ms: dict[int, float] = {}

    @property
    def vad(self) -> Vad:
        return self._parts.vad

    @property
    def recogniser(self) -> Recogniser:
        return self._parts.recogniser

    @property
    def endpoint(self) -> EndpointModel | None:
        return self._parts.endpoint

    @property
    def output_rate_hz(self) -> int:
        return self._parts.output_rate_hz

    async def run(
        self,
        turn: int,
        samples: Samples | None,
        text: str | None,
        history: Sequence[Message],
        *,
        released: asyncio.Event | None = None,
    ) -> AsyncGenerator[TurnEvent, None]:
        started = time.monotonic()
        events = self._parts.run(turn, samples, text, history, released=released)
        try:
            async for event in events:
                if isinstance(event, AnswerText):
                    self.ttft_ms.setdefault(turn, (time.monotonic() - started) * 1_000)
                yield event
        finally:
            await events.aclose()


class _Caller:
    """Says a recording, waits for the answer, and may let something sound over it.

    over: what, float32 at 16 kHz; without it the call ends with the first sound of the answer.
    """

    def __init__(self, said: Recording, rate_hz: int, over: Samples | None = None) -> None:
        self._said = said
        self._rate_hz = rate_hz
        self._over = over
        self._rng = np.random.default_rng(len(said.samples))
        self._started_s = time.monotonic()
        self._audio_s = 0.0
        self._has_hung_up = False
        self.first_audio_s: float | None = None
        self.over_at_s: float | None = None
        self.stopped_at_s: float | None = None
        self.is_silenced = False
        self.lag_s = 0.0
        self.taken: list[tuple[float, wire.Transcript]] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._started_s

    def output(self, _: int, what: Output) -> None:
        """What the conversation sends."""
        if self._has_hung_up:
            return  # the answer is stopped because nobody listens any more
        match what:
            case Send(wire.Transcript() as transcript):
                self.taken.append((self.now_s, transcript))
            case SendAudio(_, samples):
                self._heard(samples)
            case Send(wire.AudioPause() | wire.AudioStop()):
                self.is_silenced = True
                if self.over_at_s is not None and self.stopped_at_s is None:
                    self.stopped_at_s = self.now_s
            case Send(wire.AudioResume()):
                self.is_silenced = False
            case _:
                pass

    async def frames(self) -> AsyncIterator[Samples]:
        """The microphone: the recording, and then the room."""
        self._started_s = time.monotonic()
        number = 0
        while not self._is_done(number * FRAME_SAMPLES / LISTEN_RATE_HZ):
            frame = self._frame(number)
            number += 1
            due_s = number * FRAME_SAMPLES / LISTEN_RATE_HZ
            await asyncio.sleep(max(0.0, due_s - self.now_s))
            self.lag_s = max(self.lag_s, self.now_s - due_s)
            yield frame
        self._has_hung_up = True

    def asked(self, ttft_ms: dict[int, float]) -> Asked:
        """What became of the question."""
        end_s = self._said.speech_end / LISTEN_RATE_HZ
        early = [at_s for at_s, _ in self.taken if at_s < end_s]
        at_s, last = self.taken[-1] if self.taken else (None, None)
        first_s = self.first_audio_s
        return Asked(
            self._said.name,
            self._said.text,
            last.text if last else "",
            None if at_s is None else (at_s - end_s) * 1_000,
            ttft_ms.get(last.turn) if last else None,
            None if first_s is None else (first_s - end_s) * 1_000,
            len(early),
            self.lag_s * 1_000,
        )

    def overlapped(self, kind: str) -> Overlapped | None:
        """What became of the answer; None: it was over before anything sounded over it."""
        over_s, first_s = self.over_at_s, self.first_audio_s
        if over_s is None or first_s is None:
            return None
        if self.stopped_at_s is None and first_s + self._audio_s < over_s + 0.5:
            return None
        stopped_s = self.stopped_at_s
        stop_ms = None if stopped_s is None else (stopped_s - over_s) * 1_000
        return Overlapped(kind, stop_ms, not self.is_silenced)

    def _heard(self, samples: Samples) -> None:
        audible = np.flatnonzero(np.abs(samples) > _AUDIBLE)
        if self.first_audio_s is None and audible.size:
            self.first_audio_s = self.now_s + int(audible[0]) / self._rate_hz
        self._audio_s += len(samples) / self._rate_hz

    def _frame(self, number: int) -> Samples:
        start = number * FRAME_SAMPLES
        frame = self._said.samples[start : start + FRAME_SAMPLES]
        missing = FRAME_SAMPLES - len(frame)
        if missing:
            room = quiet_room(self._rng, missing / LISTEN_RATE_HZ)
            frame = np.concatenate([frame, room])
        return self._with_overlap(frame, start)

    def _with_overlap(self, frame: Samples, start: int) -> Samples:
        first_s = self.first_audio_s
        if self._over is None or first_s is None or self.now_s < first_s + OVERLAP_AFTER_S:
            return frame
        if self.over_at_s is None:
            self.over_at_s = start / LISTEN_RATE_HZ
        at = start - round(self.over_at_s * LISTEN_RATE_HZ)
        piece = self._over[at : at + FRAME_SAMPLES]
        return frame + np.pad(piece, (0, FRAME_SAMPLES - len(piece)))

    def _is_done(self, at_s: float) -> bool:
        end_s = self._said.speech_end / LISTEN_RATE_HZ
        if self.over_at_s is not None:
            return at_s > self.over_at_s + OVERLAP_WATCHED_S
        if self.first_audio_s is not None and self._over is None:
            return True
        return at_s > end_s + PATIENCE_S


async def _ask(
    parts: Parts, settings: EndpointSettings, said: Recording, over: Samples | None = None
) -> tuple[_Caller, dict[int, float]]:
    caller, timed = _Caller(said, parts.output_rate_hz, over), _Timed(parts)
    await converse(timed, caller.frames(), caller.output, settings=settings)
    return caller, timed.ttft_ms


async def _ask_all(
    parts: Parts, settings: EndpointSettings, recordings: Iterable[Recording], sessions: int
) -> list[Asked]:
    """Ask everything once, by so many callers at a time, each as soon as its last call is over."""
    waiting = iter(recordings)
    found: list[Asked] = []

    async def call_again_and_again(number: int) -> None:
        await asyncio.sleep(0.37 * number)  # people do not speak in step
        for said in waiting:
            caller, ttft_ms = await _ask(parts, settings, said)
            found.append(caller.asked(ttft_ms))

    async with asyncio.TaskGroup() as tasks:
        for number in range(sessions):
            tasks.create_task(call_again_and_again(number))
    return found


async def _overlap_all(
    parts: Parts, settings: EndpointSettings, corpus: Corpus, num_noises: int
) -> list[Overlapped]:
    rng = np.random.default_rng(0)
    voices = [r.samples[r.starts : r.speech_end] for r in corpus.interruptions]
    sounds = [(SPEECH, voice) for voice in voices]
    for _ in range(num_noises):
        sounds += [("cough", cough(rng)), ("typing", typing(rng))]
        sounds.append(("crowd", crowd(rng, voices, 2.0, 0.01)))
    found = []
    for number, (kind, sound) in enumerate(sounds):
        story = corpus.stories[number % len(corpus.stories)]
        caller, _ = await _ask(parts, settings, story, sound)
        if (overlapped := caller.overlapped(kind)) is not None:
            found.append(overlapped)
    return found


def run(config: Config, plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Load the models, make the corpus if need be, and measure.

    Raises like `Assistant.load`.
    """
    assistant = Assistant.load(config)
    try:
        synthesiser = assistant.pipeline.synthesiser
        assert isinstance(synthesiser, PiperSynthesiser)
        tell("recordings")
        corpus = CorpusStore(ember_home() / "bench" / "voice", lambda: synthesiser).load()
        return asyncio.run(_measure(assistant, config, corpus, plan, tell))
    finally:
        assistant.close()


async def _measure(
    assistant: Assistant, config: Config, corpus: Corpus, plan: Plan, tell: Callable[[str], None]
) -> Report:
    parts, settings = assistant.pipeline, config.endpointing
    questions = corpus.questions[: plan.num_questions]
    paused = corpus.paused[: plan.num_paused]
    by_sessions = {}
    for sessions in plan.sessions:
        tell(f"{len(questions)} questions, {sessions} at once")
        by_sessions[sessions] = await _ask_all(parts, settings, questions, sessions)
    by_eagerness = {}
    for eagerness in plan.eagerness:
        tell(f"eagerness {eagerness.value}")
        eager = replace(settings, eagerness=eagerness)
        plain = await _ask_all(parts, eager, questions[: len(paused)], 1)
        by_eagerness[eagerness.value] = plain, await _ask_all(parts, eager, paused, 1)
    tell("sounds over answers")
    overlapped = await _overlap_all(parts, settings, corpus, plan.num_noises)
    report = Report(
        {
            "benchmark": "voice",
            "models": [config.llm_model, config.asr_model, config.tts_model, config.turn_model],
            **machine_limits.describe_code(),
            "machine": machine_limits.describe_machine(),
        }
    )
    report.tables = [
        figures.delays_table(by_sessions),
        figures.understanding_table(by_sessions),
        figures.trade_off_table(by_eagerness),
        figures.overlap_table(overlapped),
    ]
    report.targets = figures.targets(by_sessions, overlapped)
    report.notes.append(
        "The callers are the voice that also answers, at other speeds and variations, in a quiet "
        "room: people are harder to understand, and their pauses less clear."
    )
    return report
