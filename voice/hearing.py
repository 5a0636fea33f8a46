"""The ear of one call: frames in, starts and ends of speech out, and the recent audio kept."""

from __future__ import annotations

import numpy as np

from voice.events import LISTEN_RATE_HZ, Samples
from voice.vad import (
    WINDOW_SAMPLES,
    GateEvent,
    GateState,
    SpeechGate,
    VadSettings,
    VadStream,
)

SOFT_END = VadSettings(min_speech_ms=96, min_silence_ms=96)
"""The hysteresis of a conversation: speech and silence are believed after three windows."""


class Hearing:
    """Cuts frames of any length into windows for the detector, and those into speech.

    vad: the speech probabilities of this call. Audio stays until `forget`.
    """

    def __init__(self, vad: VadStream, settings: VadSettings = SOFT_END) -> None:
        self._vad = vad
        self._gate = SpeechGate(settings)
        self._tape = Tape()
        self._num_judged = 0

    @property
    def now(self) -> int:
        """Samples heard so far."""
        return self._tape.end

    @property
    def new_silence(self) -> int | None:
        """Where the newest window begins if it is the first one without speech."""
        lasted = self._gate.num_samples - self._gate.turned_at
        is_new = self._gate.state is GateState.MAYBE_SILENCE and lasted == WINDOW_SAMPLES
        return self._gate.turned_at if is_new else None

    @property
    def is_speech(self) -> bool:
        """Whether somebody speaks, as far as is known."""
        return self._gate.state in {GateState.SPEECH, GateState.MAYBE_SILENCE}

    def feed(self, samples: Samples) -> list[GateEvent]:
        """Take the next frame, float32 [n] at 16 kHz; return what has become sure with it."""
        self._tape.append(samples)
        events = []
        while self._num_judged + WINDOW_SAMPLES <= self._tape.end:
            window = self._tape.read(self._num_judged, self._num_judged + WINDOW_SAMPLES)
            self._num_judged += WINDOW_SAMPLES
            if (event := self._gate.feed(self._vad.probability(window))) is not None:
                events.append(event)
        return events

    def audio(self, start: int, end: int) -> Samples:
        """A copy of what was heard from sample `start` up to `end`, as far as it was kept."""
        return self._tape.read(start, end).copy()

    def forget(self, before: int) -> None:
        """Audio before this sample is not needed any more."""
        self._tape.forget(min(before, self._num_judged))


class Tape:
    """The newest part of a stream of samples, addressed by position in the whole stream."""

    def __init__(self) -> None:
        self._samples = np.zeros(4 * LISTEN_RATE_HZ, np.float32)
        self._start = 0
        self.end = 0

    def append(self, samples: Samples) -> None:
        """Add what comes next."""
        needed = self.end - self._start + len(samples)
        if needed > len(self._samples):
            self._samples = np.pad(self._samples, (0, needed))
        at = self.end - self._start
        self._samples[at : at + len(samples)] = samples
        self.end += len(samples)

    def read(self, start: int, end: int) -> Samples:
        """The samples from start up to end, as far as they are there. A view: copy to keep."""
        first = max(0, start - self._start)
        return self._samples[first : max(first, min(end, self.end) - self._start)]

    def forget(self, before: int) -> None:
        """Drop what lies before, once that is much, so that little is moved."""
        num_old = min(before, self.end) - self._start
        if num_old < len(self._samples) // 2:
            return
        kept = self._samples[num_old : self.end - self._start].copy()
        self._samples = np.zeros(max(4 * LISTEN_RATE_HZ, 2 * len(kept)), np.float32)
        self._samples[: len(kept)] = kept
        self._start += num_old
