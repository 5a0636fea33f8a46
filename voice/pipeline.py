"""One turn, ears to mouth: what the user said goes in, events come out while the answer is made.

Speech recognition and synthesis run in threads. The voice speaks one clause while the language
model writes on; the two meet in a queue, and all events leave through one, in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from llm.types import (
    Committed,
    Event,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    Priority,
    Provisional,
    QueueFullError,
    Request,
    Revised,
    ToolCall,
    Usage,
)
from voice.asr import Recogniser
from voice.clauses import ClauseCutter
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
from voice.normalise import speakable
from voice.smart_turn import EndpointModel
from voice.tts import Synthesiser
from voice.vad import Vad, trim

_log = logging.getLogger(__name__)

# More clauses than an answer of usual length has, so that the voice seldom holds up the text.
_MAX_WAITING_CLAUSES = 32


class Generation(Protocol):
    """The events of one request, the last of them Finished.

    buffered_ms: kept up to date by the reader; spoken audio that is ready but not yet heard.
    """

    buffered_ms: float | None

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events as they come."""
        ...

    def abort(self) -> None:
        """Stop at the next step."""
        ...


class LanguageModel(Protocol):
    """What answers: see `llm.engine`."""

    def submit(self, request: Request) -> Generation:
        """Admit a request. Raises InvalidRequestError or QueueFullError."""
        ...


class StageError(RuntimeError):
    """A stage of the turn failed; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything that a turn needs; holds nothing of any turn, so turns may overlap.

    max_answer_tokens: longest answer. system_prompt: said to the language model first. endpoint:
    hears whether a speaker has finished; None: only the length of a silence tells.
    """

    vad: Vad
    recogniser: Recogniser
    language_model: LanguageModel
    synthesiser: Synthesiser
    max_answer_tokens: int
    system_prompt: str
    endpoint: EndpointModel | None = None

    @property
    def output_rate_hz(self) -> int:
        """The sample rate of the Speech that `run` yields."""
        return self.synthesiser.rate_hz

    async def run(
        self,
        turn: int,
        samples: Samples | None,
        text: str | None,
        history: Sequence[Message],
        *,
        speak: bool = True,
        released: asyncio.Event | None = None,
    ) -> AsyncGenerator[TurnEvent, None]:
        """Answer an utterance or a typed text, exactly one of which is given.

        turn: number that every event carries. samples: mono float32 [n] at 16 kHz. history: the
        conversation before, without the system prompt. speak: whether to synthesise the answer.
        released: until it is set only the first clause is synthesised, as the answer may not be
        wanted; None: go ahead. The last event is always the one TurnEnded. Closing the generator,
        or cancelling who reads it, aborts the answer and leaves no task behind.
        """
        assert (samples is None) != (text is None), "speech or text, one of the two"
        events: asyncio.Queue[TurnEvent] = asyncio.Queue()
        work = _Turn(self, turn, events, speak=speak, released=released)
        task = asyncio.create_task(work.run(samples, text, tuple(history)))
        try:
            while True:
                event = await events.get()
                yield event
                if isinstance(event, TurnEnded):
                    return
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _Turn:
    """One turn under way, with its clock. `events` is unbounded: an answer has a longest length."""

    def __init__(
        self,
        parts: Pipeline,
        turn: int,
        events: asyncio.Queue[TurnEvent],
        *,
        speak: bool,
        released: asyncio.Event | None,
    ) -> None:
        self._parts = parts
        self._turn = turn
        self._emit: Callable[[TurnEvent], None] = events.put_nowait
        self._speaks = speak
        self._released = released
        self._started = time.perf_counter()
        self._times = StageTimes()
        self._usage: Usage | None = None
        self._generation: Generation | None = None
        self._spoken_ms = 0.0
        self._sounds_since_ms: float | None = None

    async def run(
        self, samples: Samples | None, text: str | None, history: tuple[Message, ...]
    ) -> None:
        """Do the turn; its last event is TurnEnded, unless it is cancelled."""
        error = None
        try:
            heard = await self._listen(samples) if samples is not None else (text or "").strip()
            if heard:
                self._emit(Heard(self._turn, heard))
                outcome = await self._answer(heard, history)
            else:
                outcome = TurnOutcome.NO_SPEECH
        except* StageError as group:
            outcome, error = TurnOutcome.FAILED, str(_first(group))
            _log.debug("turn %d failed", self._turn, exc_info=group)
        except* Exception:  # noqa: BLE001 - logged, and the turn still has to end
            _log.exception("turn %d failed", self._turn)
            outcome, error = TurnOutcome.FAILED, "Something inside Ember went wrong."
        self._times = replace(self._times, total_ms=self._elapsed_ms())
        self._emit(TurnEnded(self._turn, outcome, self._times, self._usage, error))

    async def _listen(self, samples: Samples) -> str:
        """What was said; empty where nobody speaks."""
        self._times = StageTimes(audio_ms=len(samples) * 1_000 / LISTEN_RATE_HZ)
        with _stage("The voice activity detector"):
            speech = await asyncio.to_thread(trim, samples, self._parts.vad)
        vad_ms = self._elapsed_ms()
        self._times = replace(self._times, vad_ms=vad_ms)
        if speech is None:
            return ""
        with _stage("The speech recogniser"):
            transcript = await asyncio.to_thread(self._parts.recogniser.transcribe, speech)
        self._times = replace(self._times, asr_ms=self._elapsed_ms() - vad_ms)
        return transcript.text.strip()

    async def _answer(self, heard: str, history: tuple[Message, ...]) -> TurnOutcome:
        system = Message("system", self._parts.system_prompt)
        request = Request(
            (system, *history, Message("user", heard)),
            max_new_tokens=self._parts.max_answer_tokens,
            priority=Priority.VOICE,
        )
        clauses: asyncio.Queue[str | None] = asyncio.Queue(_MAX_WAITING_CLAUSES)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write(request, clauses))
            tasks.create_task(self._speak(clauses))
        return writing.result()

    async def _write(self, request: Request, clauses: asyncio.Queue[str | None]) -> TurnOutcome:
        """Pass the language model's events on, and its committed text clause by clause."""
        try:
            generation = self._parts.language_model.submit(request)
        except (InvalidRequestError, QueueFullError) as error:
            raise StageError(f"The question was not taken: {error}.") from error
        self._generation = generation
        cutter = ClauseCutter()
        try:
            with _stage("The language model"):
                async for event in generation:
                    if isinstance(event, Finished):
                        return await self._finish(event, cutter, clauses)
                    for clause in self._pass_on(event, cutter):
                        await clauses.put(clause)
        finally:
            generation.abort()
        raise StageError("The language model stopped in the middle of the answer.")

    def _pass_on(self, event: Event, cutter: ClauseCutter) -> list[str]:
        """Emit what the user may see of one event; return the clauses that it completes."""
        match event:
            case Committed(text):
                if self._times.first_commit_ms is None:
                    self._times = replace(self._times, first_commit_ms=self._elapsed_ms())
                self._emit(AnswerText(self._turn, text))
                return cutter.feed(text)
            case Provisional(start, text):
                self._emit(AnswerGuess(self._turn, start, text))
            case Revised(start, text):
                self._emit(AnswerGuess(self._turn, start, text, revised=True))
            case ToolCall() | Finished():
                pass
        return []

    async def _finish(
        self, finished: Finished, cutter: ClauseCutter, clauses: asyncio.Queue[str | None]
    ) -> TurnOutcome:
        self._times = replace(self._times, llm_ms=self._elapsed_ms())
        self._usage = finished.usage
        if finished.reason in {FinishReason.ERROR, FinishReason.TIMEOUT}:
            raise StageError(finished.error or "The language model failed.")
        for clause in cutter.finish():
            await clauses.put(clause)
        await clauses.put(None)
        if finished.reason is FinishReason.CANCELLED:
            return TurnOutcome.CANCELLED
        return TurnOutcome.ANSWERED

    async def _speak(self, clauses: asyncio.Queue[str | None]) -> None:
        """Speak clauses as they come, one Speech for each, until None."""
        while (clause := await clauses.get()) is not None:
            if not self._speaks or not (text := speakable(clause)):
                continue
            with _stage("The voice"):
                said = await asyncio.to_thread(self._parts.synthesiser.speak, text)
            if said.samples.size == 0:
                continue
            if self._times.first_audio_ms is None:
                self._times = replace(self._times, first_audio_ms=self._elapsed_ms())
            word_ends = said.spoken(clause).word_ends
            rate_hz = self._parts.output_rate_hz
            self._emit(Speech(self._turn, said.samples, rate_hz, clause, word_ends))
            if self._released is not None:
                await self._released.wait()
            self._note_reserve(len(said.samples))

    def _note_reserve(self, num_samples: int) -> None:
        """Tell the language model how far speech is ahead of the ear, playing since its start."""
        if self._sounds_since_ms is None:
            self._sounds_since_ms = self._elapsed_ms()
        self._spoken_ms += num_samples * 1_000 / self._parts.output_rate_hz
        heard_ms = self._elapsed_ms() - self._sounds_since_ms
        if self._generation is not None:
            self._generation.buffered_ms = max(0.0, self._spoken_ms - heard_ms)

    def _elapsed_ms(self) -> float:
        return (time.perf_counter() - self._started) * 1_000


@contextmanager
def _stage(name: str) -> Iterator[None]:
    """Turn whatever a model raises into a StageError that names the stage."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageError(f"{name} failed: {error}") from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
