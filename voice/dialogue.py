"""What one connection does next: client messages and turn events in, actions out.

Pure: no sockets, no tasks, no clock. `voice.session` feeds it and carries out its actions in the
order given. This is the one place where late events of an interrupted turn are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from llm.types import Message
from voice import events, wire
from voice.events import LISTEN_RATE_HZ, Samples, StageTimes, TurnEvent, TurnOutcome
from voice.wire import ErrorCode, WireError

MAX_UTTERANCE_S = 60
_MAX_UTTERANCE_BYTES = MAX_UTTERANCE_S * LISTEN_RATE_HZ * 2


class State(Enum):
    """What the connection is doing."""

    IDLE = auto()
    LISTENING = auto()
    DISCARDING = auto()
    """The utterance was too long: its audio is dropped until the client ends it."""
    ANSWERING = auto()


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message."""

    message: wire.ServerMessage


@dataclass(frozen=True, slots=True)
class SendAudio:
    """Send this piece of the turn's answer, mono in [-1, 1]."""

    turn: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class Run:
    """Start answering: exactly one of pcm (PCM16 at LISTEN_RATE_HZ) and text is given.

    history: the conversation before this question.
    """

    turn: int
    pcm: bytes | None
    text: str | None
    history: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the running answer and forget its audio that is still waiting to be sent."""


Action = Send | SendAudio | Run | Abort


class History:
    """The conversation so far, as pairs of what the user said and what was committed in reply.

    max_characters: above it the oldest pairs go, down to half of it. Dropping in big steps keeps
    the start of the prompt the same for many turns, so that its cached prefix stays useful.
    """

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._pairs: list[tuple[str, str]] = []

    def add(self, question: str, answer: str) -> None:
        """Remember one exchange; one without an answer is left out."""
        if not question or not answer:
            return
        self._pairs.append((question, answer))
        if self._num_characters() > self._max_characters:
            while self._pairs and self._num_characters() > self._max_characters // 2:
                del self._pairs[0]

    def messages(self) -> tuple[Message, ...]:
        """The conversation as messages, oldest first, roles alternating from the user's."""
        return tuple(
            message
            for question, answer in self._pairs
            for message in (Message("user", question), Message("assistant", answer))
        )

    def _num_characters(self) -> int:
        return sum(len(question) + len(answer) for question, answer in self._pairs)


class Dialogue:
    """The state of one connection.

    history: the conversation before. turn: the highest turn number used so far. Methods return what
    to do, in order, and raise WireError for what the client may not do now; the state is then as
    before.
    """

    def __init__(self, history: History, turn: int = 0) -> None:
        self.state = State.IDLE
        self.turn = turn
        self._history = history
        self._utterance = bytearray()
        self._question = ""
        self._answer: list[str] = []
        self._is_audio_open = False

    def receive(self, message: wire.ClientMessage) -> Sequence[Action]:
        """The client's next message. Raises WireError (illegal_move)."""
        match message:
            case wire.SpeechStart():
                return self._start_speech()
            case wire.SpeechEnd():
                return self._end_speech()
            case wire.Question(text):
                return self._ask(text)
            case wire.Cancel():
                return self._cancel()
            case wire.ListenStart() | wire.ListenStop() | wire.Playback():
                raise wire.illegal_move(f"{message.TYPE} has no place in push to talk")

    def receive_audio(self, pcm: bytes) -> Sequence[Action]:
        """The next piece of the utterance, PCM16 at LISTEN_RATE_HZ. Raises WireError."""
        if len(pcm) % 2:
            raise WireError(
                ErrorCode.BAD_AUDIO, f"{len(pcm)} bytes are not whole PCM16 samples; send 2 each"
            )
        if self.state is State.DISCARDING:
            return ()
        if self.state is not State.LISTENING:
            raise wire.illegal_move("audio comes after speech.start")
        if len(self._utterance) + len(pcm) > _MAX_UTTERANCE_BYTES:
            self._utterance.clear()
            self.state = State.DISCARDING
            message = f"an utterance may last {MAX_UTTERANCE_S} s; this one was dropped"
            return (Send(wire.ErrorMessage(ErrorCode.UTTERANCE_TOO_LONG, message)),)
        self._utterance += pcm
        return ()

    def handle(self, event: TurnEvent) -> Sequence[Action]:
        """The next event of a running answer; a late one, of an older turn, does nothing."""
        is_late = self.state is not State.ANSWERING or event.turn != self.turn
        return () if is_late else self._answered(event)

    def fail(self, turn: int, sentence: str) -> Sequence[Action]:
        """The answer of `turn` broke without a TurnEnded; the sentence is for the user."""
        return self.handle(events.TurnEnded(turn, TurnOutcome.FAILED, StageTimes(), error=sentence))

    def _answered(self, event: TurnEvent) -> Sequence[Action]:
        match event:
            case events.Heard(turn, text):
                if self._question:
                    return ()  # typed: its transcript was sent when it was asked
                self._question = text
                return (Send(wire.Transcript(turn, text)),)
            case events.AnswerGuess(turn, start, text, revised):
                guess = wire.AnswerRevised if revised else wire.AnswerProvisional
                return (Send(guess(turn, start, text)),)
            case events.AnswerText(turn, text):
                self._answer.append(text)
                return (Send(wire.AnswerCommitted(turn, text)),)
            case events.Speech(turn, samples):
                return (*self._open_audio(turn), SendAudio(turn, samples))
            case events.TurnEnded():
                return self._finish(event)

    def _start_speech(self) -> Sequence[Action]:
        if self.state is State.LISTENING:
            raise wire.illegal_move("speech has started already; send speech.end first")
        interruption = self._interrupt()
        self.turn += 1
        self.state = State.LISTENING
        return interruption

    def _end_speech(self) -> Sequence[Action]:
        if self.state is State.DISCARDING:
            self.state = State.IDLE
            return ()
        if self.state is not State.LISTENING:
            raise wire.illegal_move("speech.end comes after speech.start")
        pcm = bytes(self._utterance)
        self._utterance.clear()
        return (self._run(pcm=pcm, text=None),)

    def _ask(self, text: str) -> Sequence[Action]:
        if self.state is State.LISTENING:
            raise wire.illegal_move("speech has started; send speech.end or cancel first")
        interruption = self._interrupt()
        self.turn += 1
        transcript = Send(wire.Transcript(self.turn, text))
        return (*interruption, transcript, self._run(pcm=None, text=text))

    def _cancel(self) -> Sequence[Action]:
        # Legal in every state: the answer may have ended while the message was on its way.
        interruption = self._interrupt()
        self._utterance.clear()
        self.state = State.IDLE
        return interruption

    def _run(self, *, pcm: bytes | None, text: str | None) -> Run:
        self.state = State.ANSWERING
        self._question = text or ""
        self._answer = []
        return Run(self.turn, pcm, text, self._history.messages())

    def _interrupt(self) -> Sequence[Action]:
        if self.state is not State.ANSWERING:
            return ()
        ended = events.TurnEnded(self.turn, TurnOutcome.CANCELLED, StageTimes())
        return (Abort(), *self._finish(ended))

    def _finish(self, ended: events.TurnEnded) -> Sequence[Action]:
        self._history.add(self._question, "".join(self._answer))
        self.state = State.IDLE
        messages: list[wire.ServerMessage] = []
        if self._is_audio_open:
            self._is_audio_open = False
            messages.append(wire.AudioEnd(ended.turn))
        if ended.outcome is TurnOutcome.FAILED:
            sentence = ended.error or "the answer failed"
            messages.append(wire.ErrorMessage(ErrorCode.TURN_FAILED, sentence))
        messages.append(wire.TurnDone(ended.turn, ended.outcome, ended.times, ended.usage))
        return _sends(messages)

    def _open_audio(self, turn: int) -> Sequence[Action]:
        if self._is_audio_open:
            return ()
        self._is_audio_open = True
        return (Send(wire.AudioStart(turn)),)


def _sends(messages: Iterable[wire.ServerMessage]) -> tuple[Action, ...]:
    return tuple(Send(message) for message in messages)
