"""Somebody speaks while Ember does: an interruption, or a cough, a "mhm", an echo?

    SPEAKING ─speech▶ WEIGHING ─lasts▶ YIELDED ─words▶ INTERRUPTED
       ▲ ▲  duck        │  ╲    pause     │                ▲
       │ └──────────────┘   ╲─words───────┼────────────────┘
       └── no words, "mhm": resume ───────┘

One machine for each answer. Ember becomes soft at once and silent after a quarter of a second;
its answer is thrown away only when words say so, and goes on where it stopped if none come. Pure;
time is in samples of the call at LISTEN_RATE_HZ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from voice.echo import ECHO_CORRELATION
from voice.events import LISTEN_RATE_HZ
from voice.transcript import words_of

_BACKCHANNEL = re.compile(
    r"mhm|mm|uh|huh|uhhuh|aha|ah|oh|yeah|yep|yup|yes|ok|alright|right|sure|cool|nice|great|wow"
    r"|really|exactly|indeed|i|see|got|it|good"
)
# Words that are a backchannel only together: "I see", "got it", and not "it" alone.
_MAX_BACKCHANNEL_WORDS = 3
# Other speech resembles what is played for a frame or two; an echo does so all the time.
_SURE_ECHOES = 3


class BargeInState(Enum):
    """What Ember does about who speaks over it."""

    SPEAKING = auto()
    WEIGHING = auto()
    """Softly, until it is clear whether that is an interruption."""
    YIELDED = auto()
    """Silent, waiting for the words of who interrupted."""
    INTERRUPTED = auto()
    """The answer is thrown away; nothing more can happen to it."""


class BargeInAction(Enum):
    """What to do with the sound of the answer."""

    DUCK = "duck"
    UNDUCK = "unduck"
    PAUSE = "pause"
    RESUME = "resume"
    INTERRUPT = "interrupt"
    """Throw the answer away, and keep of it in the history what was heard."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The detector hears speech, from this sample on."""

    at: int


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """The detector hears no speech any more, since this sample."""

    at: int


@dataclass(frozen=True, slots=True)
class Listened:
    """A frame was heard. echo: `EchoDetector.correlation`; above_db: `NoiseFloor.above_db`."""

    echo: float
    above_db: float


@dataclass(frozen=True, slots=True)
class Words:
    """What was understood of the speech so far; final: it has paused, and that is all of it."""

    text: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Protected:
    """A passage that must be heard to its end begins or is over."""

    is_on: bool


BargeInInput = SpeechStarted | SpeechEnded | Listened | Words | Protected


class IllegalBargeInError(RuntimeError):
    """An input that cannot come in this state: a mistake of ours."""


@dataclass(frozen=True, slots=True)
class BargeInSettings:
    """min_speech_ms: speech that lasts so long stops the answer. min_above_db: what stands out less
    of the noise is a voice in the background. resume_ms: the pause before an answer goes on after
    an interruption without words. max_wait_ms: how long words may take after the speech.
    """

    min_speech_ms: int = 250
    min_above_db: float = 9.0
    resume_ms: int = 500
    max_wait_ms: int = 2_000


class BargeIn:
    """The machine of one answer, from its first sample that sounds. num_resumed: how often it went
    on after silence.
    """

    def __init__(self, settings: BargeInSettings | None = None) -> None:
        self.state = BargeInState.SPEAKING
        self.num_resumed = 0
        self._settings = settings or BargeInSettings()
        self._is_protected = False
        self._is_speech = False
        self._since = 0
        """From when on somebody speaks, or, in a pause, since when nobody does."""
        self._num_echoes = 0
        self._words = ""
        self._is_final = False

    def handle(self, event: BargeInInput, now: int) -> BargeInAction | None:
        """Take the next input; now: samples received so far.

        Raises IllegalBargeInError where speech starts twice or ends without a start, and for
        anything after INTERRUPTED.
        """
        if self.state is BargeInState.INTERRUPTED:
            raise IllegalBargeInError(f"{event} after the answer was interrupted")
        match event:
            case SpeechStarted(at):
                self._started(at)
                return None
            case SpeechEnded(at):
                return self._ended(at)
            case Listened():
                return self._listened(event, now)
            case Words(text, final):
                self._words, self._is_final = text, final
                return self._understood(now)
            case Protected(is_on):
                self._is_protected = is_on
                return self._back() if is_on else None

    def _started(self, at: int) -> None:
        if self._is_speech:
            raise IllegalBargeInError("speech starts twice")
        self._is_speech, self._since = True, at
        self._words, self._is_final = "", False

    def _ended(self, at: int) -> BargeInAction | None:
        if not self._is_speech:
            raise IllegalBargeInError("speech ends that has not started")
        self._is_speech, self._since = False, at
        return self._back() if self.state is BargeInState.WEIGHING else None

    def _listened(self, heard: Listened, now: int) -> BargeInAction | None:
        if self._is_protected:
            return None
        if self.state is BargeInState.YIELDED:
            return self._waited(now)
        return self._weighed(heard, now) if self._is_speech else None

    def _weighed(self, heard: Listened, now: int) -> BargeInAction | None:
        """Somebody seems to speak while Ember sounds."""
        is_weighing = self.state is BargeInState.WEIGHING
        is_echo = heard.echo >= ECHO_CORRELATION
        self._num_echoes = self._num_echoes + 1 if is_echo else 0
        if is_echo and is_weighing and self._num_echoes < _SURE_ECHOES:
            return None
        if is_echo or heard.above_db < self._settings.min_above_db:
            self._since = now
            return self._back()
        if self._words and not means_to_interrupt(self._words):
            return self._back()
        if is_weighing:
            return self._decided(now)
        self.state = BargeInState.WEIGHING
        return BargeInAction.DUCK

    def _decided(self, now: int) -> BargeInAction | None:
        """Whether what was weighed so far is enough."""
        if means_to_interrupt(self._words):
            return self._interrupt()
        if _ms(now - self._since) < self._settings.min_speech_ms:
            return None
        self.state = BargeInState.YIELDED
        return BargeInAction.PAUSE

    def _understood(self, now: int) -> BargeInAction | None:
        if self._is_protected:
            return None
        # What an echo says is Ember's own words: they count only while somebody is near.
        if means_to_interrupt(self._words) and self.state is not BargeInState.SPEAKING:
            return self._interrupt()
        if self.state is BargeInState.YIELDED:
            return self._waited(now)
        return None

    def _waited(self, now: int) -> BargeInAction | None:
        """Nothing sounds: go on when it is clear that nothing was said."""
        if self._is_speech:
            return None
        if self._is_final and self._words:
            return self._back()  # a backchannel
        silent_ms = _ms(now - self._since)
        wait_ms = self._settings.resume_ms if self._is_final else self._settings.max_wait_ms
        if silent_ms < wait_ms:
            return None
        # Whoever makes Ember stop twice without a word wants it to be silent.
        if self.num_resumed:
            return self._interrupt()
        self.num_resumed += 1
        return self._back()

    def _back(self) -> BargeInAction | None:
        before, self.state = self.state, BargeInState.SPEAKING
        match before:
            case BargeInState.WEIGHING:
                return BargeInAction.UNDUCK
            case BargeInState.YIELDED:
                return BargeInAction.RESUME
            case _:
                return None

    def _interrupt(self) -> BargeInAction:
        self.state = BargeInState.INTERRUPTED
        return BargeInAction.INTERRUPT


def means_to_interrupt(text: str) -> bool:
    """Whether words said over an answer want it to stop: any but a short backchannel do."""
    words = words_of(text)
    if len(words) > _MAX_BACKCHANNEL_WORDS:
        return True
    return any(not _BACKCHANNEL.fullmatch(word) for word in words)


def _ms(samples: int) -> float:
    return samples * 1_000 / LISTEN_RATE_HZ
