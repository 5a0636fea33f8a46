"""The messages of `WS /v1/voice`: frozen dataclasses, and JSON text to and from them.

Text messages are JSON objects with a `type`; every other key is required and no other is allowed.
Binary messages are PCM16, little-endian, mono: up at `input_rate_hz`, any number of whole samples
in each; down at `output_rate_hz`, belonging to the turn of the last `audio.start`.

| direction | type | keys | meaning |
|---|---|---|---|
| client | `speech.start` | | the user starts to speak: audio follows; interrupts a running answer |
| client | `speech.end` | | the user has spoken: answer what was said |
| client | `text` | `text` | answer this typed question; interrupts a running answer |
| client | `cancel` | | stop the answer, or forget the speech so far |
| client | `listen.start` | `eagerness` | hands-free: audio flows all the time from now on |
| client | `listen.stop` | | back to push to talk |
| client | `playback` | `turn`, `played_ms` | hands-free: so much of the answer has sounded |
| server | `session.ready` | `input_rate_hz`, `output_rate_hz` | first message, exactly one |
| server | `transcript` | `turn`, `text` | what the user said or typed |
| server | `answer.provisional` | `turn`, `start`, `text` | a guess: from character `start` on |
| server | `answer.revised` | `turn`, `start`, `text` | a guess that withdraws text shown before |
| server | `answer.committed` | `turn`, `text` | final text, appended to what was committed before |
| server | `audio.start` | `turn` | the binary messages that follow speak this turn's answer |
| server | `audio.end` | `turn` | no more audio of this turn; one for each `audio.start` |
| server | `hearing` | `speaking`, `text` | hands-free: does the user speak, and the words so far |
| server | `audio.gain` | `turn`, `gain` | hands-free: play the answer so loud, 0 to 1 |
| server | `audio.pause` | `turn`, `fade_ms` | hands-free: fade out, drop what waits to be played |
| server | `audio.resume` | `turn`, `at_ms` | hands-free: it goes on from here in what follows |
| server | `audio.stop` | `turn`, `fade_ms`, `heard` | hands-free: fade out, drop the rest |
| server | `turn.ended` | `turn`, `outcome`, `times`, `usage` | last of a turn, exactly one |
| server | `error` | `code`, `message` | something was refused or failed; the connection lives on |

Turns are counted from 1: each accepted `speech.start` or `text` begins the next one. After
`listen.start` the client streams frames of any length up to 1 s (20 ms is best) and the server
hears where speech begins and ends; `speech.end` then means that the user has spoken. Turn numbers
still rise, with gaps; a turn begins with its `transcript`, and its answer may be stopped
(`audio.stop`, where `heard` is what the user is taken to have heard) after `turn.ended` too.
`eagerness` is low, medium, high or auto, or "" for the server's own. A guess
replaces earlier guesses and never changes committed text; characters are Unicode code points of
the whole answer. `times` are milliseconds, null where a stage did not run; `usage` is null where
the language model did not run. Mistakes are answered with `error`, eleven in a row with close
code 1008; a message above 2 MiB closes with 1009, a shutdown with 1001, a server that is still
loading or full with 1013.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from llm.types import Usage
from voice.events import StageTimes, TurnOutcome

M = TypeVar("M")

MAX_QUESTION_CHARACTERS = 4000
"""The longest typed question."""


class ErrorCode(Enum):
    """Why an `error` message was sent."""

    BAD_MESSAGE = "bad_message"
    BAD_AUDIO = "bad_audio"
    ILLEGAL_MOVE = "illegal_move"
    UTTERANCE_TOO_LONG = "utterance_too_long"
    TURN_FAILED = "turn_failed"


class WireError(ValueError):
    """The client sent something that is refused; the message says what to send instead."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SpeechStart:
    """The user starts to speak."""

    TYPE: ClassVar[str] = "speech.start"


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """The user has spoken."""

    TYPE: ClassVar[str] = "speech.end"


@dataclass(frozen=True, slots=True)
class Question:
    """A typed question."""

    TYPE: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the answer, or forget the speech so far."""

    TYPE: ClassVar[str] = "cancel"


@dataclass(frozen=True, slots=True)
class ListenStart:
    """Begin to listen hands-free."""

    TYPE: ClassVar[str] = "listen.start"
    eagerness: str


@dataclass(frozen=True, slots=True)
class ListenStop:
    """Back to push to talk."""

    TYPE: ClassVar[str] = "listen.stop"


@dataclass(frozen=True, slots=True)
class Playback:
    """So much of the turn's audio has sounded."""

    TYPE: ClassVar[str] = "playback"
    turn: int
    played_ms: int


@dataclass(frozen=True, slots=True)
class SessionReady:
    """The first message: the sample rates of the binary messages up and down."""

    TYPE: ClassVar[str] = "session.ready"
    input_rate_hz: int
    output_rate_hz: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the user said or typed."""

    TYPE: ClassVar[str] = "transcript"
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class AnswerProvisional:
    """From character `start` on the answer may read `text`."""

    TYPE: ClassVar[str] = "answer.provisional"
    turn: int
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class AnswerRevised:
    """Text shown as provisional was wrong: from `start` on it now reads `text`."""

    TYPE: ClassVar[str] = "answer.revised"
    turn: int
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class AnswerCommitted:
    """Final text, appended to what was committed before."""

    TYPE: ClassVar[str] = "answer.committed"
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class AudioStart:
    """The binary messages that follow speak this turn's answer."""

    TYPE: ClassVar[str] = "audio.start"
    turn: int


@dataclass(frozen=True, slots=True)
class AudioEnd:
    """No more audio of this turn."""

    TYPE: ClassVar[str] = "audio.end"
    turn: int


@dataclass(frozen=True, slots=True)
class Hearing:
    """Whether the user speaks, and the words so far, which may still change."""

    TYPE: ClassVar[str] = "hearing"
    speaking: bool
    text: str


@dataclass(frozen=True, slots=True)
class AudioGain:
    """Play the turn's answer so loud from now on: 1 is as it is, 0 is silence."""

    TYPE: ClassVar[str] = "audio.gain"
    turn: int
    gain: float


@dataclass(frozen=True, slots=True)
class AudioPause:
    """Fade out and drop what waits to be played of the turn's answer; perhaps it goes on."""

    TYPE: ClassVar[str] = "audio.pause"
    turn: int
    fade_ms: int


@dataclass(frozen=True, slots=True)
class AudioResume:
    """The binary messages that follow give the turn's answer from `at_ms` of it on."""

    TYPE: ClassVar[str] = "audio.resume"
    turn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class AudioStop:
    """The turn's answer was interrupted: fade out and drop the rest. heard: the words heard."""

    TYPE: ClassVar[str] = "audio.stop"
    turn: int
    fade_ms: int
    heard: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The last message of a turn."""

    TYPE: ClassVar[str] = "turn.ended"
    turn: int
    outcome: TurnOutcome
    times: StageTimes
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """Something was refused or failed; one sentence says what."""

    TYPE: ClassVar[str] = "error"
    code: ErrorCode
    message: str


ClientMessage = SpeechStart | SpeechEnd | Question | Cancel | ListenStart | ListenStop | Playback
ServerMessage = (
    SessionReady
    | Transcript
    | AnswerProvisional
    | AnswerRevised
    | AnswerCommitted
    | AudioStart
    | AudioEnd
    | Hearing
    | AudioGain
    | AudioPause
    | AudioResume
    | AudioStop
    | TurnDone
    | ErrorMessage
)

_CLIENT: dict[str, type[ClientMessage]] = {cls.TYPE: cls for cls in get_args(ClientMessage)}
_SERVER: dict[str, type[ServerMessage]] = {cls.TYPE: cls for cls in get_args(ServerMessage)}


def serialise(message: ClientMessage | ServerMessage) -> str:
    """The message as one JSON object in text."""
    return json.dumps(
        {"type": message.TYPE, **asdict(message)},
        ensure_ascii=False,
        allow_nan=False,
        default=lambda value: value.value,
    )


def parse_client(text: str) -> ClientMessage:
    """Read what a client sent. Raises WireError (bad_message) for anything out of the table."""
    message = _parse(text, _CLIENT)
    if isinstance(message, Question):
        _check_question(message.text)
    return message


def parse_server(text: str) -> ServerMessage:
    """Read what a server sent. Raises WireError (bad_message) for anything out of the table."""
    return _parse(text, _SERVER)


def _check_question(text: str) -> None:
    if not text.strip():
        raise _bad("'text' is empty; send a question")
    if len(text) > MAX_QUESTION_CHARACTERS:
        raise _bad(f"'text' has {len(text)} characters; at most {MAX_QUESTION_CHARACTERS} fit")


def illegal_move(message: str) -> WireError:
    """The message has no place now; the sentence says what has."""
    return WireError(ErrorCode.ILLEGAL_MOVE, message)


def _parse(text: str, known: dict[str, type[M]]) -> M:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        # A lone surrogate ("\\ud800") is valid JSON but no text: this raises for it.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _bad("not a JSON object in UTF-8") from error
    if not isinstance(value, dict):
        raise _bad("not a JSON object")
    name = value.pop("type", None)
    if not isinstance(name, str) or name not in known:
        raise _bad(f"'type' must be one of {', '.join(known)}")
    message: M = _decode(known[name], value, name)
    return message


def _decode(wanted: Any, value: Any, where: str) -> Any:
    """Read JSON `value` as the type `wanted`, exactly: nothing is converted or left out."""
    if get_origin(wanted) is UnionType:
        if value is None:
            return None
        (wanted,) = (option for option in get_args(wanted) if option is not NoneType)
    if get_origin(wanted) is tuple:
        item, _ = get_args(wanted)  # tuple[item, ...]
        if isinstance(value, list):
            return tuple(_decode(item, one, where) for one in value)
        raise _bad(f"'{where}' must be a list")
    if isinstance(wanted, type) and is_dataclass(wanted):
        if not isinstance(value, dict):
            raise _bad(f"'{where}' must be an object")
        types = get_type_hints(wanted)
        names = [field.name for field in fields(wanted)]
        if set(names) != set(value):
            raise _bad(f"'{where}' must have exactly these keys: {', '.join(names) or 'none'}")
        return wanted(**{name: _decode(types[name], value[name], name) for name in names})
    if issubclass(wanted, Enum):
        for member in wanted:
            if member.value == value:
                return member
    elif wanted is float and type(value) in {int, float}:
        return float(value)
    elif type(value) is wanted:
        return value
    raise _bad(f"'{where}' has a value of the wrong type")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _bad(message: str) -> WireError:
    return WireError(ErrorCode.BAD_MESSAGE, message)
