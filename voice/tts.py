"""Text to speech."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from piper import PiperVoice
from piper.config import PiperConfig, SynthesisConfig

from voice.events import Samples
from voice.onnx_session import open_session

_AUDIBLE = 0.02
_LEAD_MS = 10
# The voice's own level differs little between clauses; scaling each to its peak would make "Yes."
# as loud as the loudest word of a long sentence.
_SYNTHESIS = SynthesisConfig(normalize_audio=False)


class Synthesiser(Protocol):
    """Reads text aloud."""

    @property
    def rate_hz(self) -> int:
        """The sample rate of what it says."""
        ...

    def synthesise(self, text: str) -> Iterator[Samples]:
        """Speak a clause, piece by piece; nothing where nothing can be spoken."""
        ...


class PiperSynthesiser:
    """A Piper voice on ONNX Runtime.

    voice: the voice's .onnx file, with its settings beside it in <voice>.json. num_threads: 1 or
    more; a clause of Piper's gains little from a second one.
    """

    def __init__(self, voice: Path, num_threads: int) -> None:
        settings = json.loads(voice.with_name(voice.name + ".json").read_text(encoding="utf-8"))
        config = PiperConfig.from_dict(settings)
        self._voice = PiperVoice(session=open_session(voice, num_threads), config=config)
        self.rate_hz: int = config.sample_rate

    def synthesise(self, text: str) -> Iterator[Samples]:
        """Speak `text`, one piece for each sentence, from the first audible sample on."""
        if not any(character.isalnum() for character in text):
            return
        for chunk in self._voice.synthesize(text, _SYNTHESIS):
            samples = trim_start(chunk.audio_float_array, self.rate_hz)
            if samples.size:
                yield samples


def trim_start(samples: Samples, rate_hz: int) -> Samples:
    """Cut the silence before the first audible sample, but for the 10 ms in which sound rises.

    Piper begins each sentence with about 65 ms of silence, which the listener would wait for.
    """
    audible = np.flatnonzero(np.abs(samples) > _AUDIBLE)
    if audible.size == 0:
        return samples[:0]
    return samples[max(0, int(audible[0]) - _LEAD_MS * rate_hz // 1_000) :]
