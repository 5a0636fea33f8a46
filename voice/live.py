"""Runs a hands-free conversation: models in threads, answers as tasks, time from the frames.

`voice.conversation` decides; this carries out. Nothing here waits for a model on the event loop
except the voice activity detector, which takes 0.2 ms for each 32 ms of audio.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from llm.types import Message
from voice import wire
from voice.answering import FlushAudio
from voice.asr import Recogniser
from voice.conversation import (
    AbortAnswer,
    Action,
    Answer,
    Conversation,
    JudgeEndpoint,
    Measured,
    Released,
    Transcribe,
)
from voice.dialogue import History, Send, SendAudio
from voice.endpoint import EndpointSettings, TurnTaking
from voice.events import LISTEN_RATE_HZ, Samples, StageTimes, TurnEnded, TurnEvent, TurnOutcome
from voice.hearing import Hearing
from voice.measures import TurnRecord
from voice.smart_turn import EndpointModel
from voice.vad import GatedVad, Vad

MISSING_AFTER_S = 0.3
"""When no frame has come for so long, the microphone counts as silent until one does."""

FILL_EVERY_S = 0.1

_log = logging.getLogger(__name__)

Output = Send | SendAudio | FlushAudio
"""What leaves: messages, audio, and the order to forget audio that has not left yet."""


class Parts(Protocol):
    """The models of a conversation: see `voice.pipeline.Pipeline`."""

    @property
    def vad(self) -> Vad:
        """Tells speech from everything else."""
        ...

    @property
    def recogniser(self) -> Recogniser:
        """Turns speech into text."""
        ...

    @property
    def endpoint(self) -> EndpointModel | None:
        """Hears whether a speaker has finished."""
        ...

    @property
    def output_rate_hz(self) -> int:
        """The sample rate of the answers."""
        ...

    def run(
        self,
        turn: int,
        samples: Samples | None,
        text: str | None,
        history: Sequence[Message],
        *,
        released: asyncio.Event | None = None,
    ) -> AsyncGenerator[TurnEvent, None]:
        """Answer what was said or typed; ends after TurnEnded."""
        ...


def log_turn(record: TurnRecord) -> None:
    """Write the record of a turn to the log, as one line."""
    _log.info("%s", record.log_line())


class Live:
    """One hands-free conversation.

    parts: the models. settings: when a turn is over. history: shared with what came before. turn:
    the highest turn number used so far. keeps_time: the transport takes samples with `take`, at
    their time, and gets none from out. out: takes what leaves, in order, without waiting.
    measured: takes the record of each turn that is over. session: the conversation's name in them.
    start: makes a task of a coroutine and keeps it. has_room: waits until more may leave.
    clock: seconds that never go back.
    """

    def __init__(
        self,
        parts: Parts,
        settings: EndpointSettings,
        history: History,
        *,
        turn: int = 0,
        keeps_time: bool = False,
        out: Callable[[Output], None],
        start: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        has_room: Callable[[], Awaitable[None]],
        measured: Callable[[TurnRecord], None] = log_turn,
        session: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if parts.endpoint is None and settings.turn_taking is TurnTaking.SMART:
            settings = replace(settings, turn_taking=TurnTaking.SILENCE)
        self._parts = parts
        self._hearing = Hearing(GatedVad(parts.vad).stream())
        self.conversation = Conversation(
            self._hearing,
            settings,
            history,
            rate_hz=parts.output_rate_hz,
            turn=turn,
            keeps_time=keeps_time,
            session=session,
        )
        self._out = out
        self._start = start
        self._has_room = has_room
        self._measured = measured
        self._clock = clock
        self._last_frame_s = clock()
        self._now = 0
        self._answers: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._work: set[asyncio.Task[None]] = set()

    @property
    def now(self) -> int:
        """The time of the call in samples: those received and, since the last, the clock's."""
        since_s = min(self._clock() - self._last_frame_s, 1.0)
        self._now = max(self._now, self._hearing.now + int(since_s * LISTEN_RATE_HZ))
        return self._now

    def hear(self, samples: Samples) -> None:
        """The next frame from the microphone, float32 [n] at LISTEN_RATE_HZ."""
        self._last_frame_s = self._clock()
        self._now = max(self._now, self._hearing.now + len(samples))
        self._act(self.conversation.hear(samples, self._now))

    def take(self, num_samples: int) -> Samples:
        """The next samples for the listener, silence where there are none (keeps_time)."""
        return self.conversation.take(num_samples, self.now)

    def receive(self, message: wire.ClientMessage) -> None:
        """A message of the client. Raises WireError for one that has no place here."""
        self._act(self.conversation.receive(message, self.now))

    def end(self) -> None:
        """The conversation is over: stop what is under way."""
        self._act(self.conversation.end(self.now))
        for task in self._work:
            task.cancel()

    async def fill_gaps(self) -> None:
        """While no frames come, let silence come: time goes on, and so speech ends."""
        while True:
            await asyncio.sleep(FILL_EVERY_S)
            missing_s = self._clock() - self._last_frame_s
            if missing_s >= MISSING_AFTER_S:
                self.hear(np.zeros(int(min(missing_s, 1.0) * LISTEN_RATE_HZ), np.float32))

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send() | SendAudio() | FlushAudio():
                    self._out(action)
                case Measured(record):
                    self._measured(record)
                case Transcribe():
                    self._keep(self._transcribe(action))
                case JudgeEndpoint():
                    self._keep(self._judge(action))
                case Answer(turn):
                    released = asyncio.Event()
                    self._answers[turn] = self._keep(self._answer(action, released)), released
                case Released(turn):
                    if (running := self._answers.get(turn)) is not None:
                        running[1].set()
                case AbortAnswer(turn):
                    if (aborted := self._answers.pop(turn, None)) is not None:
                        aborted[0].cancel()

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._start(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _transcribe(self, action: Transcribe) -> None:
        text = ""
        try:
            found = await asyncio.to_thread(self._parts.recogniser.transcribe, action.samples)
            text = found.text.strip()
        except Exception:  # noqa: BLE001  # one broken transcript must not end the conversation
            _log.exception("a transcript failed")
        self._act(self.conversation.transcribed(action.job, text, self.now))

    async def _judge(self, action: JudgeEndpoint) -> None:
        assert self._parts.endpoint is not None
        try:
            judge = self._parts.endpoint.probability
            probability = await asyncio.to_thread(judge, action.samples)
        except Exception:  # noqa: BLE001  # the longest hold ends the turn as well
            _log.exception("the endpoint model failed")
            return
        self._act(self.conversation.judged(action.end, probability, self.now))

    async def _answer(self, action: Answer, released: asyncio.Event) -> None:
        turn = action.turn
        events = self._parts.run(turn, None, action.text, action.history, released=released)
        try:
            async for event in events:
                self._act(self.conversation.replied(event, self.now))
                await self._has_room()
        except Exception:  # noqa: BLE001  # one broken answer must not end the conversation
            _log.exception("turn %d failed", turn)
        finally:
            await events.aclose()
            self._answers.pop(turn, None)
        # Does nothing after a TurnEnded; otherwise the user must learn that no more is coming.
        error = "the answer failed inside the server"
        failed = TurnEnded(turn, TurnOutcome.FAILED, StageTimes(), error=error)
        self._act(self.conversation.replied(failed, self.now))
