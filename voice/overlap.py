"""Feeds the judge of interruptions: one for each answer, while it sounds."""

from __future__ import annotations

from voice.audio import StreamResampler
from voice.barge_in import (
    BargeIn,
    BargeInAction,
    BargeInInput,
    BargeInState,
    Listened,
    SpeechEnded,
    SpeechStarted,
    Words,
)
from voice.echo import EchoDetector
from voice.events import LISTEN_RATE_HZ, Samples
from voice.noise_floor import NoiseFloor


class Overlap:
    """What is heard of one call while answers sound.

    rate_hz: of the answers. keeps_time: `played` gets what leaves, as it leaves; else the client
    is trusted to cancel its echo, as browsers do.
    """

    def __init__(self, rate_hz: int, *, keeps_time: bool) -> None:
        self._floor = NoiseFloor()
        self._echo = EchoDetector() if keeps_time else None
        self._resampler = StreamResampler(rate_hz, LISTEN_RATE_HZ)
        self._judge: BargeIn | None = None
        self._is_speech = False
        self._is_understood = False

    @property
    def is_settled(self) -> bool:
        """Whether what was said over the answer is understood, and no interruption."""
        is_back = self._judge is None or self._judge.state is BargeInState.SPEAKING
        return self._is_understood and is_back

    def answer_sounds(self) -> None:
        """Something of an answer sounds; only the first time counts."""
        if self._judge is None:
            self._judge = BargeIn()
            self._is_speech = False

    def answer_ended(self) -> None:
        """The answer sounds no more."""
        self._judge = None

    def played(self, samples: Samples) -> None:
        """What the listener gets now, silence included."""
        if self._echo is not None:
            self._echo.played(self._resampler.feed(samples))

    def began(self, at: int, now: int) -> BargeInAction | None:
        """Speech began at this sample."""
        self._is_speech, self._is_understood = True, False
        return self._handle(SpeechStarted(at), now)

    def ended(self, at: int, now: int) -> BargeInAction | None:
        """Speech ended at this sample."""
        was_speech, self._is_speech = self._is_speech, False
        # Of speech that began before the answer the judge knows nothing.
        return self._handle(SpeechEnded(at), now) if was_speech else None

    def listened(self, samples: Samples, now: int) -> BargeInAction | None:
        """The next frame was heard."""
        self._floor.feed(samples)
        if self._echo is not None:
            self._echo.heard(samples)
        judge = self._judge
        if judge is None or not (self._is_speech or judge.state is BargeInState.YIELDED):
            return None
        echo = 0.0 if self._echo is None else self._echo.correlation()
        return self._handle(Listened(echo, self._floor.above_db), now)

    def understood(self, text: str, now: int, *, final: bool = False) -> BargeInAction | None:
        """These words were said; final: the speech has paused, and these are all."""
        self._is_understood = final
        return self._handle(Words(text, final), now)

    def _handle(self, event: BargeInInput, now: int) -> BargeInAction | None:
        if self._judge is None:
            return None
        action = self._judge.handle(event, now)
        if action is BargeInAction.INTERRUPT:
            self._judge = None
        return action
