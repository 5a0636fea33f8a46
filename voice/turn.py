"""Whose turn it is: the one state machine of a spoken conversation. Pure; time is in samples.

    IDLE ─speech▶ USER_SPEAKING ─soft end▶ PAUSED ─hold over▶ THINKING ─sound▶ SPEAKING ─▶ IDLE
                      ▲ ▲ ▲                  │                   │              │    ▲
                      │ │ └──────speech──────┘                   │       speech │    │ false alarm
                      │ └────────────────speech──────────────────┘              ▼    │
                      └──────────────────────interruption──────────────────── OVERLAPPING

The answer is made from the soft end on, as a speculation: whatever comes of it is held until the
turn is released, and dropped if the user goes on and says something else. Each attempt at an
answer has a number of its own, rising; what arrives with another number than the current one's is
dropped, in `TurnMachine._replied` and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from voice.endpoint import Endpointer
from voice.events import LISTEN_RATE_HZ, Speech, TurnEnded, TurnEvent
from voice.transcript import same_words, starts_with_words
from voice.turn_events import (
    Abort,
    Actions,
    Asked,
    Cancelled,
    Closed,
    Complete,
    Drop,
    FalseAlarm,
    Interrupted,
    Judge,
    Judged,
    PartlyUnderstood,
    Pass,
    PlayedOut,
    Release,
    Replied,
    Speculate,
    SpeechBegan,
    SpeechPaused,
    Stop,
    Ticked,
    TurnInput,
    Understood,
)

MAX_UTTERANCE_S = 60
"""Whoever speaks for longer is taken to have said what matters."""

GRACE_MS = 1_000
"""Whoever speaks so soon after an answer began to sound had not finished: the turn was taken too
soon, and what is said continues the utterance."""


class TurnState(Enum):
    """Who has the turn."""

    IDLE = auto()
    USER_SPEAKING = auto()
    PAUSED = auto()
    """The user fell silent; perhaps that was all."""
    THINKING = auto()
    """The turn is Ember's, and nothing sounds yet."""
    SPEAKING = auto()
    OVERLAPPING = auto()
    """The user speaks while Ember does; `voice.barge_in` judges what that means."""
    WEIGHING = auto()
    """The user spoke while Ember did, and paused before it was clear what that means."""


class IllegalMoveError(RuntimeError):
    """An event that cannot happen in this state: a mistake of ours."""


@dataclass(slots=True)
class _Utterance:
    """What the user says. end, probability and text: of the newest pause.

    is_closed: the client said that this is all. goes_on: it began before the answer that sounds.
    """

    start: int
    end: int = 0
    probability: float | None = None
    text: str | None = None
    is_closed: bool = False
    goes_on: bool = False


@dataclass(slots=True)
class _Reply:
    """The current attempt at an answer. held: its events that may not leave yet."""

    turn: int
    text: str
    is_known: bool = False
    """The client was told of it."""
    is_made: bool = False
    held: list[TurnEvent] = field(default_factory=list)


class TurnMachine:
    """Takes inputs in the order of time and returns what to do, in order.

    endpointer: how long to wait at a pause. turn: the highest number given so far.
    """

    def __init__(self, endpointer: Endpointer, turn: int = 0) -> None:
        self.state = TurnState.IDLE
        self.turn = turn
        self._endpointer = endpointer
        self._utterance = _Utterance(0)
        self._reply: _Reply | None = None
        self._sounds_since = 0

    @property
    def utterance_start(self) -> int:
        """Where what the user says, or said last, began."""
        return self._utterance.start

    @property
    def goes_on(self) -> bool:
        """Whether what the user says began before the answer that sounds."""
        return self._utterance.goes_on

    def may_go_on(self, now: int) -> bool:
        """Whether speech that begins now, or goes on, may belong to the utterance before."""
        match self.state:
            case TurnState.IDLE:
                return False
            case TurnState.SPEAKING:
                return now - self._sounds_since < GRACE_MS * LISTEN_RATE_HZ // 1_000
            case _:
                return True

    def handle(self, event: TurnInput, now: int) -> Actions:  # noqa: PLR0912 - one for each input
        """The next input; now: samples received so far.

        Raises IllegalMoveError for what cannot happen now, and changes nothing then.
        """
        match event:
            case SpeechBegan(start):
                actions = self._began(start)
            case SpeechPaused(end):
                actions = self._paused(end, now)
            case Judged(end, probability):
                actions = self._judged(end, probability, now)
            case Understood(end, text):
                actions = self._understood(end, text, now)
            case PartlyUnderstood(text):
                actions = self._partly_understood(text)
            case Asked(text):
                actions = self._asked(text, now)
            case Closed():
                actions = self._closed(now)
            case Cancelled():
                actions = self._cancelled()
            case Replied(made):
                actions = self._replied(made, now)
            case Interrupted():
                actions = self._interrupted(now)
            case FalseAlarm():
                actions = self._false_alarm()
            case PlayedOut(turn):
                actions = self._played_out(turn, now)
            case Ticked():
                actions = self._ticked(now)
        return actions

    # ---- the user

    def _began(self, start: int) -> Actions:
        match self.state:
            case TurnState.IDLE:
                self._utterance = _Utterance(start)
                self.state = TurnState.USER_SPEAKING
            case TurnState.PAUSED:
                self._go_on()
            case TurnState.THINKING:
                self._endpointer.was_too_soon()
                self._go_on()
            case TurnState.SPEAKING:
                goes_on = self.may_go_on(start)
                self._utterance = _Utterance(self._utterance.start if goes_on else start)
                self._utterance.goes_on = goes_on
                self.state = TurnState.OVERLAPPING
            case TurnState.WEIGHING:
                self._new_pause(0)
                self.state = TurnState.OVERLAPPING
            case TurnState.USER_SPEAKING | TurnState.OVERLAPPING:
                raise self._illegal("speech began")
        return ()

    def _go_on(self) -> None:
        """The utterance was not over. The answer is kept: perhaps that was only a cough."""
        self._utterance = _Utterance(self._utterance.start)
        self.state = TurnState.USER_SPEAKING

    def _paused(self, end: int, now: int) -> Actions:
        match self.state:
            case TurnState.USER_SPEAKING:
                self.state = TurnState.PAUSED
            case TurnState.OVERLAPPING:
                self.state = TurnState.WEIGHING
            case _:
                return ()  # the rest of what was cancelled, closed or a false alarm
        self._new_pause(end)
        return (Judge(self._utterance.start, end), *self._release_if_due(now))

    def _new_pause(self, end: int) -> None:
        utterance = self._utterance
        self._utterance = _Utterance(utterance.start, end, goes_on=utterance.goes_on)

    def _judged(self, end: int, probability: float, now: int) -> Actions:
        if self.state not in {TurnState.PAUSED, TurnState.WEIGHING} or end != self._utterance.end:
            return ()
        self._utterance.probability = probability
        return self._release_if_due(now)

    def _understood(self, end: int, text: str, now: int) -> Actions:
        if self.state not in {TurnState.PAUSED, TurnState.WEIGHING} or end != self._utterance.end:
            return ()
        self._utterance.text = text
        if self.state is TurnState.WEIGHING:
            return ()
        return (*self._speculate(text), *self._release_if_due(now))

    def _partly_understood(self, text: str) -> Actions:
        reply = self._reply
        if self.state is not TurnState.USER_SPEAKING or reply is None:
            return ()
        return () if starts_with_words(reply.text, text) else self._drop()

    def _closed(self, now: int) -> Actions:
        match self.state:
            case TurnState.USER_SPEAKING:
                actions = self._paused(now, now)
                self._utterance.is_closed = True
                return actions
            case TurnState.PAUSED:
                self._utterance.is_closed = True
                return self._release_if_due(now)
            case _:
                return ()

    def _asked(self, text: str, now: int) -> Actions:
        actions = self._cancelled()
        # Whoever speaks before anything sounds continues the question from here.
        self._utterance = _Utterance(now, now, text=text, is_closed=True)
        self.state = TurnState.PAUSED
        return (*actions, *self._speculate(text), *self._release_if_due(now))

    def _cancelled(self) -> Actions:
        is_sounding = self._is_sounding
        self.state = TurnState.IDLE
        return self._stop() if is_sounding else self._drop()

    # ---- the answer

    def _speculate(self, text: str) -> Actions:
        """Make the answer to `text`, unless just that is being made."""
        if self._reply is not None and same_words(self._reply.text, text):
            return ()
        dropped = self._drop()
        if not text:
            return dropped
        self.turn += 1
        self._reply = _Reply(self.turn, text)
        return (*dropped, Speculate(self.turn, text))

    def _release_if_due(self, now: int) -> Actions:
        utterance = self._utterance
        if self.state is not TurnState.PAUSED or utterance.text is None:
            return ()
        if not utterance.is_closed:
            hold_ms = self._endpointer.hold_ms(utterance.probability, utterance.text)
            if hold_ms is None or now - utterance.end < hold_ms * LISTEN_RATE_HZ // 1_000:
                return ()
        if self._reply is None:
            self.state = TurnState.IDLE  # there were no words
            return ()
        self.state = TurnState.THINKING
        reply, held = self._current, self._current.held
        reply.held = []
        released = () if reply.is_known else (Release(reply.turn, utterance.text, utterance.end),)
        reply.is_known = True
        return (*released, *(action for event in held for action in self._passed(event, now)))

    def _replied(self, event: TurnEvent, now: int) -> Actions:
        reply = self._reply
        if reply is None or event.turn != reply.turn or reply.is_made:
            return ()  # the one place where what is late is dropped
        reply.is_made = isinstance(event, TurnEnded)
        if self.state in {TurnState.USER_SPEAKING, TurnState.PAUSED}:
            reply.held.append(event)
            return ()
        return self._passed(event, now)

    def _passed(self, event: TurnEvent, now: int) -> Actions:
        if isinstance(event, Speech) and self.state is TurnState.THINKING:
            self.state = TurnState.SPEAKING
            self._sounds_since = now
        if isinstance(event, TurnEnded) and self.state is TurnState.THINKING:
            self.state = TurnState.IDLE
            return (Pass(event), *self._completed())
        return (Pass(event),)

    def _played_out(self, turn: int, now: int) -> Actions:
        if self._reply is None or self._reply.turn != turn or not self._is_sounding:
            return ()
        if not self._reply.is_made:
            raise self._illegal("an answer that is not made was heard to its end")
        match self.state:
            case TurnState.OVERLAPPING:
                self.state = TurnState.USER_SPEAKING
            case TurnState.WEIGHING:
                self.state = TurnState.PAUSED
            case _:
                self.state = TurnState.IDLE
        self._endpointer.was_right()
        return (*self._completed(), *self._take_up(now))

    # ---- both at once

    def _interrupted(self, now: int) -> Actions:
        match self.state:
            case TurnState.OVERLAPPING:
                self.state = TurnState.USER_SPEAKING
            case TurnState.WEIGHING:
                self.state = TurnState.PAUSED
            case _:
                raise self._illegal("an interruption of nothing")
        if self._utterance.goes_on:
            self._endpointer.was_too_soon()
        stopped = self._stop(counts=not self._utterance.goes_on)
        return (*stopped, *self._take_up(now))

    def _take_up(self, now: int) -> Actions:
        """Go on with a pause whose words were understood while the answer still sounded."""
        if self.state is not TurnState.PAUSED or self._utterance.text is None:
            return ()
        return (*self._speculate(self._utterance.text), *self._release_if_due(now))

    def _false_alarm(self) -> Actions:
        if self.state is not TurnState.WEIGHING:
            raise self._illegal("a false alarm without an alarm")
        self.state = TurnState.SPEAKING
        return ()

    def _ticked(self, now: int) -> Actions:
        is_speaking = self.state is TurnState.USER_SPEAKING
        if is_speaking and now - self._utterance.start > MAX_UTTERANCE_S * LISTEN_RATE_HZ:
            return self._closed(now)
        return self._release_if_due(now)

    # ---- ends of answers

    def _drop(self) -> Actions:
        reply, self._reply = self._reply, None
        if reply is None:
            return ()
        return (Abort(reply.turn) if reply.is_known else Drop(reply.turn),)

    def _stop(self, *, counts: bool = True) -> Actions:
        reply, self._reply = self._current, None
        return (Stop(reply.turn, counts),)

    def _completed(self) -> Actions:
        reply, self._reply = self._current, None
        return (Complete(reply.turn),)

    @property
    def _current(self) -> _Reply:
        assert self._reply is not None, self.state
        return self._reply

    @property
    def _is_sounding(self) -> bool:
        return self.state in {TurnState.SPEAKING, TurnState.OVERLAPPING, TurnState.WEIGHING}

    def _illegal(self, what: str) -> IllegalMoveError:
        return IllegalMoveError(f"{what} while {self.state.name}")
