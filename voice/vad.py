"""Where in the audio somebody speaks.

`SileroVad` gives a probability of speech for each window of 32 ms, and `GatedVad` spares it the
silence; `SpeechGate` turns probabilities into starts and ends of speech with hysteresis, and knows
neither models nor clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

import numpy as np
import webrtcvad

from voice.audio import pcm16_from_float
from voice.events import LISTEN_RATE_HZ, Samples
from voice.onnx_session import open_session

WINDOW_SAMPLES = 512
"""One window of the model: 32 ms at 16 kHz."""

_CONTEXT_SAMPLES = 64

_GATE_SAMPLES = 480
# Of 0 to 3; higher ones miss soft beginnings of words.
_GATE_MODE = 1
_GATE_HANGOVER = 16
"""Windows, 0.5 s, in which the judge still hears what WebRTC takes for silence."""

_GATE_LOOK_BACK = 4
"""Windows before the gate opened that the judge hears then, so that it knows the background."""


class VadStream(Protocol):
    """Speech probabilities of one stream of audio."""

    def probability(self, window: Samples) -> float:
        """How likely it is that the next window, float32 [512] at 16 kHz, holds speech."""
        ...


class Vad(Protocol):
    """A model that tells speech from everything else."""

    def stream(self) -> VadStream:
        """Begin to listen to a stream of audio."""
        ...


class SileroVad:
    """Silero VAD 5 and 6 (one model, any number of streams and threads).

    model: path of `silero_vad.onnx`.
    """

    def __init__(self, model: Path) -> None:
        self._session = open_session(model, num_threads=1)

    def stream(self) -> VadStream:
        """Begin to listen to a stream of audio."""
        return _SileroStream(self._session.run)


class _Run(Protocol):
    def __call__(
        self, names: list[str] | None, feeds: dict[str, np.ndarray]
    ) -> list[np.ndarray]: ...


class _SileroStream:
    """The model's memory of one stream: its recurrent state and the last 4 ms of audio."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)
        self._rate = np.array(LISTEN_RATE_HZ, np.int64)

    def probability(self, window: Samples) -> float:
        assert window.shape == (WINDOW_SAMPLES,), window.shape
        heard = np.concatenate((self._context, window)).astype(np.float32, copy=False)
        output, self._state = self._run(
            None, {"input": heard[None], "state": self._state, "sr": self._rate}
        )
        self._context = window[-_CONTEXT_SAMPLES:]
        return float(output[0, 0])


class GatedVad:
    """WebRTC's detector first, which costs 1/20 of the judge and takes much for speech.

    judge: asked only about what may be speech and 0.5 s more.
    """

    def __init__(self, judge: Vad) -> None:
        self._judge = judge

    def stream(self) -> VadStream:
        """Begin to listen to a stream of audio."""
        first = webrtcvad.Vad(_GATE_MODE)
        return GatedStream(
            lambda pcm: bool(first.is_speech(pcm, LISTEN_RATE_HZ)), self._judge.stream()
        )


class GatedStream:
    """One stream: a cheap opinion, and a judge that is asked while it says yes and for a while.

    may_be_speech: takes 480 samples (30 ms) of PCM16.
    """

    def __init__(self, may_be_speech: Callable[[bytes], bool], judge: VadStream) -> None:
        self._may_be_speech = may_be_speech
        self._judge = judge
        self._num_quiet = _GATE_HANGOVER
        self._missed: deque[Samples] = deque(maxlen=_GATE_LOOK_BACK)

    def probability(self, window: Samples) -> float:
        """How likely it is that the next window, float32 [512] at 16 kHz, holds speech."""
        if self._may_be_speech(pcm16_from_float(window[:_GATE_SAMPLES])):
            self._num_quiet = 0
        else:
            self._num_quiet += 1
        if self._num_quiet > _GATE_HANGOVER:
            self._missed.append(window)
            return 0.0
        while self._missed:
            self._judge.probability(self._missed.popleft())
        return self._judge.probability(window)


@dataclass(frozen=True, slots=True)
class VadSettings:
    """When sound counts as speech.

    start_threshold, stop_threshold: probabilities in [0, 1] at which speech begins and ends; start
    is the higher. min_speech_ms: shorter sounds are ignored. min_silence_ms: shorter pauses are
    part of the speech. padding_ms: kept on both sides by `trim`, so that soft consonants survive.
    """

    start_threshold: float = 0.5
    stop_threshold: float = 0.35
    min_speech_ms: int = 96
    min_silence_ms: int = 320
    padding_ms: int = 200


class GateState(Enum):
    """Where the hysteresis stands."""

    SILENCE = auto()
    MAYBE_SPEECH = auto()
    SPEECH = auto()
    MAYBE_SILENCE = auto()


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Somebody speaks; the first sample of it."""

    at_sample: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The speech is over; the first sample after it."""

    at_sample: int


GateEvent = SpeechStarted | SpeechStopped


class SpeechGate:
    """Hysteresis over speech probabilities: a start or a stop is said once it is sure.

    Positions are samples since the first window, so they lie before the moment of saying.
    num_samples: how many were judged. turned_at: where the newest MAYBE began.
    """

    def __init__(self, settings: VadSettings = VadSettings()) -> None:
        self.state = GateState.SILENCE
        self._settings = settings
        self.num_samples = 0
        self.turned_at = 0

    def feed(self, probability: float) -> GateEvent | None:
        """Take the probability of the next window; return what has become sure with it."""
        begin = self.num_samples
        self.num_samples += WINDOW_SAMPLES
        settings = self._settings
        match self.state:
            case GateState.SILENCE | GateState.MAYBE_SPEECH:
                if probability < self._threshold_of(self.state):
                    self.state = GateState.SILENCE
                    return None
                if self.state is GateState.SILENCE:
                    self.state, self.turned_at = GateState.MAYBE_SPEECH, begin
                if self._lasts(settings.min_speech_ms):
                    self.state = GateState.SPEECH
                    return SpeechStarted(self.turned_at)
            case GateState.SPEECH | GateState.MAYBE_SILENCE:
                if probability >= self._threshold_of(self.state):
                    self.state = GateState.SPEECH
                    return None
                if self.state is GateState.SPEECH:
                    self.state, self.turned_at = GateState.MAYBE_SILENCE, begin
                if self._lasts(settings.min_silence_ms):
                    self.state = GateState.SILENCE
                    return SpeechStopped(self.turned_at)
        return None

    def finish(self) -> GateEvent | None:
        """The audio is over: end the speech that is still open."""
        stopped: SpeechStopped | None
        match self.state:
            case GateState.SPEECH:
                stopped = SpeechStopped(self.num_samples)
            case GateState.MAYBE_SILENCE:
                stopped = SpeechStopped(self.turned_at)
            case GateState.SILENCE | GateState.MAYBE_SPEECH:
                stopped = None
        self.state = GateState.SILENCE
        return stopped

    def _threshold_of(self, state: GateState) -> float:
        rising = state in {GateState.SILENCE, GateState.MAYBE_SILENCE}
        return self._settings.start_threshold if rising else self._settings.stop_threshold

    def _lasts(self, duration_ms: int) -> bool:
        lasted = self.num_samples - self.turned_at
        return lasted * 1_000 >= duration_ms * LISTEN_RATE_HZ


def speech_span(
    probabilities: Iterable[float],
    settings: VadSettings = VadSettings(),
) -> tuple[int, int] | None:
    """The samples from the first start of speech to its last end; None without speech."""
    gate = SpeechGate(settings)
    events = [*map(gate.feed, probabilities), gate.finish()]
    starts = [event.at_sample for event in events if isinstance(event, SpeechStarted)]
    stops = [event.at_sample for event in events if isinstance(event, SpeechStopped)]
    return (starts[0], stops[-1]) if starts else None


def trim(
    samples: Samples,
    vad: Vad,
    settings: VadSettings = VadSettings(),
) -> Samples | None:
    """Cut the silence off both ends of an utterance.

    samples: mono float32 [n] at 16 kHz. Returns the speech with its padding, or None where
    nobody speaks.
    """
    stream = vad.stream()
    padded = np.pad(samples, (0, -len(samples) % WINDOW_SAMPLES))
    span = speech_span(map(stream.probability, padded.reshape(-1, WINDOW_SAMPLES)), settings)
    if span is None:
        return None
    padding = settings.padding_ms * LISTEN_RATE_HZ // 1_000
    return samples[max(0, span[0] - padding) : span[1] + padding]
