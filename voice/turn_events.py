"""What the turn machine is told and what it asks for: two closed unions. Positions are samples."""

from __future__ import annotations

from dataclasses import dataclass

from voice.events import TurnEvent


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The user speaks, from this sample on."""

    start: int


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """The soft end: the user has been silent from this sample on."""

    end: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The endpoint model on the pause at `end`: how likely the speech is complete."""

    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class Understood:
    """The final transcript of the speech that paused at `end`; empty where it was none."""

    end: int
    text: str


@dataclass(frozen=True, slots=True)
class PartlyUnderstood:
    """What the user has said so far, while speaking."""

    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A typed question."""

    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The client says that the user has spoken: do not wait for the end of the turn."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client wants silence: forget the answer and what is being said."""


@dataclass(frozen=True, slots=True)
class Replied:
    """Something of an answer was made."""

    event: TurnEvent


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user means to interrupt (OVERLAPPING, WEIGHING)."""


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """Noise, or "mhm": the user did not mean to interrupt (WEIGHING)."""


@dataclass(frozen=True, slots=True)
class PlayedOut:
    """All sound of this turn's answer, which is complete, has been heard."""

    turn: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


TurnInput = (
    SpeechBegan
    | SpeechPaused
    | Judged
    | Understood
    | PartlyUnderstood
    | Asked
    | Closed
    | Cancelled
    | Replied
    | Interrupted
    | FalseAlarm
    | PlayedOut
    | Ticked
)


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask the endpoint model and the recogniser about the speech of these samples."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Speculate:
    """Start to make an answer; nothing of it may leave yet."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Abort an answer of which the client knows nothing."""

    turn: int


@dataclass(frozen=True, slots=True)
class Release:
    """The turn is Ember's: what is passed from now on leaves. end: where the speech ended."""

    turn: int
    text: str
    end: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Let an event of the released answer out."""

    event: TurnEvent


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort a released answer of which nothing has sounded yet."""

    turn: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Fade the sound out, forget what waits of it, and abort the answer.

    counts: whether question and answer happened; else the question goes on and is asked again.
    """

    turn: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Complete:
    """The answer is made, and all of it that sounds has been heard."""

    turn: int


TurnAction = Judge | Speculate | Drop | Release | Pass | Abort | Stop | Complete
Actions = tuple[TurnAction, ...]
