"""The recordings of the benchmark, made by a voice, with the exact end of speech known.

The voice is the one that also answers, but faster, slower and with other variation: speech of
people is harder to recognise, and their pauses are less clear. A corpus is made once and kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from piper.config import SynthesisConfig

from voice.audio import resample
from voice.bench.texts import INTERRUPTIONS, LONG_ANSWERS, PAUSED, QUESTIONS
from voice.events import LISTEN_RATE_HZ, Samples
from voice.tts import PiperSynthesiser

TAIL_S = 1.5
"""Room noise after each recording, at least."""

_ROOM_LEVEL = 0.001
"""Root mean square of a quiet room, -60 dB."""

_LEAD_S = 0.3
# The last sample above this is the acoustic end: 40 dB below the loudest, where speech is silent.
_SILENT = 0.005
_SPEEDS = (0.9, 1.0, 1.12, 1.25)
_VARIATIONS = (0.4, 0.667, 0.9)
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """Somebody says something in a quiet room, float32 at 16 kHz.

    starts, speech_end: the first and the last sample of the speech, exactly. pause: first and last
    sample of a pause in the middle, if there is one.
    """

    name: str
    text: str
    samples: Samples
    starts: int
    speech_end: int
    pause: tuple[int, int] | None = None

    @property
    def pause_ms(self) -> float:
        """How long the pause in the middle lasts; 0 if there is none."""
        return 0.0 if self.pause is None else _ms(self.pause[1] - self.pause[0])


@dataclass(frozen=True, slots=True)
class Corpus:
    """questions: one sentence each. paused: with a pause of 300 to 900 ms in the middle. stories:
    questions whose answers are long. interruptions: what is said over them.
    """

    questions: tuple[Recording, ...]
    paused: tuple[Recording, ...]
    stories: tuple[Recording, ...]
    interruptions: tuple[Recording, ...]


class CorpusStore:
    """Makes the recordings that are missing in `folder`, and reads the others.

    voice: opened only if something is missing.
    """

    def __init__(self, folder: Path, voice: Callable[[], PiperSynthesiser]) -> None:
        self._folder = folder
        self._open = voice
        self._voice: PiperSynthesiser | None = None

    def load(self) -> Corpus:
        """Every recording. Takes half a minute the first time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return Corpus(
            tuple(self._all("question", [(text,) for text in QUESTIONS])),
            tuple(self._all("paused", PAUSED)),
            tuple(self._all("story", [(text,) for text in LONG_ANSWERS])),
            tuple(self._all("interruption", [(text,) for text in INTERRUPTIONS])),
        )

    def _all(self, kind: str, texts: Sequence[tuple[str, ...]]) -> Iterator[Recording]:
        for number, parts in enumerate(texts):
            name = f"{kind}-{number:02d}"
            spoken = [self._spoken(f"{name}-{i}", number, part) for i, part in enumerate(parts)]
            pause_ms = 300 + 50 * (number * 5 % 13) if len(parts) > 1 else 0
            yield place(name, " ".join(parts), spoken, pause_ms, np.random.default_rng(number))

    def _spoken(self, name: str, number: int, text: str) -> Samples:
        """The bare speech of a text, from the cache if it is there."""
        speed = _SPEEDS[number % len(_SPEEDS)]
        variation = _VARIATIONS[number % len(_VARIATIONS)]
        recipe = f"{_VERSION} {text} {speed} {variation}"
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
        path = self._folder / f"{name}-{digest}.npy"
        if path.exists():
            kept: Samples = np.load(path)
            return kept
        self._voice = self._voice or self._open()
        manner = SynthesisConfig(
            length_scale=1 / speed,
            noise_scale=variation,
            noise_w_scale=variation,
            normalize_audio=False,
        )
        said = self._voice.speak(text, manner).samples
        samples = resample(said, self._voice.rate_hz, LISTEN_RATE_HZ)
        part = path.with_suffix(".part.npy")
        np.save(part, samples)
        part.replace(path)
        return samples


def place(
    name: str, text: str, spoken: list[Samples], pause_ms: int, rng: np.random.Generator
) -> Recording:
    """Put bare speech, of one or two parts with a pause between them, into a quiet room."""
    parts = [_bare(samples) for samples in spoken]
    starts = int(_LEAD_S * LISTEN_RATE_HZ)
    pieces: list[Samples] = [np.zeros(starts, np.float32), parts[0]]
    pause = None
    if len(parts) > 1:
        silence = np.zeros(pause_ms * LISTEN_RATE_HZ // 1_000, np.float32)
        begins = starts + len(parts[0])
        pause = begins, begins + len(silence)
        pieces += [silence, *parts[1:]]
    speech = np.concatenate(pieces)
    samples = np.pad(speech, (0, int(TAIL_S * LISTEN_RATE_HZ)))
    room = rng.normal(0, _ROOM_LEVEL, len(samples))
    return Recording(name, text, (samples + room).astype(np.float32), starts, len(speech), pause)


def _bare(samples: Samples) -> Samples:
    """Without the silence at both ends, to the sample."""
    sounding = np.flatnonzero(np.abs(samples) > _SILENT)
    return samples[sounding[0] : sounding[-1] + 1]


def _ms(samples: int) -> float:
    return samples * 1_000 / LISTEN_RATE_HZ
