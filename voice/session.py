"""One connection's tasks and queues, around the decisions of `voice.dialogue`.

Three kinds of task: one reads, one writes, one runs the answer; a hands-free conversation has its
own (`voice.live`) in the place of the last. Whatever ends first ends the session; everything is
then cancelled and awaited, so that a vanished client frees all it held.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from voice import wire
from voice.answering import FlushAudio
from voice.audio import AudioError, float_from_pcm16, pcm16_from_float
from voice.dialogue import Abort, Action, Dialogue, History, Run, Send, SendAudio
from voice.endpoint import ENDPOINTING, Eagerness, EndpointSettings, TurnTaking
from voice.events import LISTEN_RATE_HZ, Samples
from voice.live import Live, Output, Parts, log_turn
from voice.measures import TurnRecord
from voice.wire import ErrorCode, ErrorMessage, SessionReady, WireError, parse_client, serialise

MAX_MISTAKES = 10
"""Refused messages in a row that a client may send; one more closes the connection."""

MAX_PENDING_BYTES = 256 * 1024
"""Above this many bytes waiting to be sent, reading and answering pause (6 s of 22 kHz audio)."""

SEND_TIMEOUT_S = 10.0
"""A client that takes nothing for so long has vanished."""

CLOSE_TIMEOUT_S = 0.5
"""How long saying goodbye may take, so that a clogged connection cannot hold up a shutdown."""

MAX_FRAME_BYTES = 2 * LISTEN_RATE_HZ
"""The longest frame of a hands-free stream, 1 s: it is heard in one go."""

_log = logging.getLogger(__name__)


class DisconnectedError(Exception):
    """The client is gone."""


class Connection(Protocol):
    """A message connection such as a WebSocket; every method may raise DisconnectedError."""

    async def receive(self) -> str | bytes:
        """The next message."""
        ...

    async def send(self, data: str | bytes) -> None:
        """Send one message; waits while the network is slow."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye with a WebSocket close code (RFC 6455, section 7.4.1)."""
        ...


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Why the server ends a session: a WebSocket close code and a reason in words."""

    code: int
    reason: str


GOING_AWAY = Goodbye(1001, "the server is shutting down")
TOO_MANY_MISTAKES = Goodbye(1008, "too many refused messages in a row")
INTERNAL_ERROR = Goodbye(1011, "internal error")


class Outbox:
    """Messages waiting to be sent: adding never waits, and `has_room` holds back who adds."""

    def __init__(self, max_pending_bytes: int) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._messages: deque[str | bytes] = deque()
        self._num_pending_bytes = 0
        self._has_message = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def add(self, message: str | bytes) -> None:
        """Append a message."""
        self._messages.append(message)
        self._update(len(message))

    def drop_audio(self) -> None:
        """Forget the binary messages: they speak an answer that was interrupted."""
        dropped = sum(len(m) for m in self._messages if isinstance(m, bytes))
        self._messages = deque(m for m in self._messages if isinstance(m, str))
        self._update(-dropped)

    async def take(self) -> str | bytes:
        """The oldest message; waits for one."""
        while not self._messages:
            await self._has_message.wait()
        message = self._messages.popleft()
        self._update(-len(message))
        return message

    async def has_room(self) -> None:
        """Wait until few enough bytes are pending."""
        await self._has_room.wait()

    def _update(self, num_bytes: int) -> None:
        self._num_pending_bytes += num_bytes
        _set_to(self._has_message, bool(self._messages))
        _set_to(self._has_room, self._num_pending_bytes < self._max_pending_bytes)


class Session:
    """One client and its conversation.

    max_history_characters: how much of the conversation the model is shown again. endpointing:
    when a turn of a hands-free conversation is over. measured: takes the record of each such turn.
    """

    def __init__(
        self,
        connection: Connection,
        pipeline: Parts,
        *,
        max_history_characters: int,
        endpointing: EndpointSettings = ENDPOINTING,
        measured: Callable[[TurnRecord], None] = log_turn,
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._endpointing = endpointing
        self._measured = measured
        self._name = secrets.token_hex(4)
        self._history = History(max_history_characters)
        self._dialogue = Dialogue(self._history)
        self._live: Live | None = None
        self._filling: asyncio.Task[None] | None = None
        self._outbox = Outbox(MAX_PENDING_BYTES)
        self._ended: asyncio.Future[Goodbye | None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the client until it leaves or `end` is called. Raises nothing of the client's."""
        self._act([Send(SessionReady(LISTEN_RATE_HZ, self._pipeline.output_rate_hz))])
        self._start(self._write())
        self._start(self._read())
        try:
            goodbye = await self._ended
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if goodbye is not None:
            await self._say(goodbye)

    def end(self, goodbye: Goodbye | None) -> None:
        """End the session; None where the client is gone and cannot be told."""
        if not self._ended.done():
            self._ended.set_result(goodbye)

    async def _say(self, goodbye: Goodbye) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connection.close(goodbye.code, goodbye.reason)
        except (DisconnectedError, TimeoutError):
            return

    async def _read(self) -> None:
        num_mistakes = 0
        while num_mistakes <= MAX_MISTAKES:
            await self._outbox.has_room()
            try:
                data = await self._connection.receive()
                self._take(data)
                num_mistakes = 0
            except DisconnectedError:
                self.end(None)
                return
            except WireError as error:
                num_mistakes += 1
                self._act([Send(ErrorMessage(error.code, str(error)))])
        self.end(TOO_MANY_MISTAKES)

    def _take(self, data: str | bytes) -> None:
        """Act on what the client sent. Raises WireError."""
        message = None if isinstance(data, bytes) else parse_client(data)
        if self._live is None:
            if isinstance(message, wire.ListenStart):
                self._listen(message)
            elif isinstance(data, bytes):
                self._act(self._dialogue.receive_audio(data))
            elif message is not None:
                self._act(self._dialogue.receive(message))
        elif isinstance(message, wire.ListenStop):
            self._stop_listening(self._live)
        elif isinstance(data, bytes):
            self._live.hear(_frame(data))
        elif message is not None:
            self._live.receive(message)

    def _listen(self, message: wire.ListenStart) -> None:
        settings = _with_eagerness(self._endpointing, message.eagerness)
        self._act(self._dialogue.receive(wire.Cancel()))
        self._live = Live(
            self._pipeline,
            settings,
            self._history,
            turn=self._dialogue.turn,
            out=self._put,
            start=self._start,
            has_room=self._outbox.has_room,
            measured=self._measured,
            session=self._name,
        )
        self._filling = self._start(self._live.fill_gaps())

    def _stop_listening(self, live: Live) -> None:
        live.end()
        if self._filling is not None:
            self._filling.cancel()
        self._dialogue = Dialogue(self._history, live.conversation.turn)
        self._live = None

    def _put(self, output: Output) -> None:
        match output:
            case Send(message):
                self._outbox.add(serialise(message))
            case SendAudio(_, samples):
                self._outbox.add(pcm16_from_float(samples))
            case FlushAudio():
                self._outbox.drop_audio()

    async def _write(self) -> None:
        try:
            while True:
                message = await self._outbox.take()
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._connection.send(message)
        except (DisconnectedError, TimeoutError):
            self.end(None)

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send() | SendAudio():
                    self._put(action)
                case Run():
                    self._answer = self._start(self._run(action))
                case Abort():
                    assert self._answer is not None, "an abort follows a run"
                    self._answer.cancel()
                    self._outbox.drop_audio()

    async def _run(self, run: Run) -> None:
        samples = None if run.pcm is None else float_from_pcm16(run.pcm)
        events = self._pipeline.run(run.turn, samples, run.text, run.history)
        try:
            async for event in events:
                self._act(self._dialogue.handle(event))
                await self._outbox.has_room()
        except Exception:  # noqa: BLE001  # one broken answer must not end the conversation
            _log.exception("turn %d failed", run.turn)
        finally:
            await events.aclose()
        # Does nothing after a TurnEnded; otherwise the user must learn that no more is coming.
        self._act(self._dialogue.fail(run.turn, "the answer failed inside the server"))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("a task of a session failed", exc_info=error)
        self.end(INTERNAL_ERROR)


def _frame(pcm: bytes) -> Samples:
    """A frame of a hands-free stream. Raises WireError."""
    if len(pcm) > MAX_FRAME_BYTES:
        raise WireError(ErrorCode.BAD_AUDIO, f"a frame of {len(pcm)} bytes; send 1 s or less")
    try:
        return float_from_pcm16(pcm)
    except AudioError as error:
        raise WireError(ErrorCode.BAD_AUDIO, str(error)) from error


def _with_eagerness(settings: EndpointSettings, eagerness: str) -> EndpointSettings:
    """The settings with the client's wish. Raises WireError."""
    if settings.turn_taking is TurnTaking.PUSH_TO_TALK:
        raise wire.illegal_move("this server listens only between speech.start and speech.end")
    if not eagerness:
        return settings
    known = [member.value for member in Eagerness]
    if eagerness not in known:
        message = f"'eagerness' must be empty or one of {', '.join(known)}"
        raise WireError(ErrorCode.BAD_MESSAGE, message)
    return replace(settings, eagerness=Eagerness(eagerness))


def _set_to(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
