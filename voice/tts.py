"""Text to speech."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
from piper import AudioChunk, PiperVoice
from piper.config import PiperConfig, SynthesisConfig
from piper.patch_voice_with_alignment import add_alignment_output
from piper.voice import PhonemeAlignment

from voice.events import Samples
from voice.heard import SpokenClause, WordSound
from voice.onnx_session import open_session
from voice.seams import finish_clause, lead_of

# The voice's own level differs little between clauses; scaling each to its peak would make "Yes."
# as loud as the loudest word of a long sentence.
_SYNTHESIS = SynthesisConfig(normalize_audio=False)

# Stress and length: they take time but are no phonemes.
_MARKS = "\u02c8\u02cc\u02d0"


@dataclass(frozen=True, slots=True)
class Utterance:
    """A clause as it sounds. sounds: where its spoken words end, if the voice tells."""

    samples: Samples
    sounds: tuple[WordSound, ...]

    def spoken(self, written: str) -> SpokenClause:
        """The words of the clause as `written`, with where each ends in `samples`."""
        return SpokenClause.of(written, len(self.samples), self.sounds)


class Synthesiser(Protocol):
    """Reads text aloud."""

    @property
    def rate_hz(self) -> int:
        """The sample rate of what it says."""
        ...

    def speak(self, text: str) -> Utterance:
        """Speak a clause; no samples where nothing can be spoken."""
        ...


class PiperSynthesiser:
    """A Piper voice on ONNX Runtime.

    voice: the voice's .onnx file, with its settings beside it in <voice>.json. num_threads: 1 or
    more; a clause of Piper's gains little from a second one.
    """

    def __init__(self, voice: Path, num_threads: int) -> None:
        settings = json.loads(voice.with_name(voice.name + ".json").read_text(encoding="utf-8"))
        config = PiperConfig.from_dict(settings)
        session = open_session(_with_durations(voice), num_threads)
        self._voice = PiperVoice(session=session, config=config)
        self.rate_hz: int = config.sample_rate

    def speak(self, text: str, synthesis: SynthesisConfig = _SYNTHESIS) -> Utterance:
        """Speak a clause whole: silence before it cut, the pause after it as its text asks.

        synthesis: speed and variation; the voice's own where none is given.
        """
        pieces: list[Samples] = [np.zeros(0, np.float32)]
        sounds: list[WordSound] = []
        start = 0
        for chunk in self._chunks(text, synthesis):
            samples = chunk.audio_float_array
            lead = lead_of(samples, self.rate_hz)
            sounds += [
                WordSound(sound.num_phonemes, start + max(0, sound.end - lead))
                for sound in word_sounds(chunk.phoneme_alignments or ())
            ]
            pieces.append(samples[lead:])
            start += len(samples) - lead
        return Utterance(finish_clause(np.concatenate(pieces), self.rate_hz, text), tuple(sounds))

    def _chunks(self, text: str, synthesis: SynthesisConfig = _SYNTHESIS) -> Iterable[AudioChunk]:
        if not any(character.isalnum() for character in text):
            return ()
        return self._voice.synthesize(text, synthesis, include_alignments=True)


def word_sounds(alignments: Iterable[PhonemeAlignment]) -> list[WordSound]:
    """Join phonemes with their durations into words.

    Spaces part words; the marks of the beginning, of punctuation and of the end add their time to
    the word before, which the pause belongs to.
    """
    sounds: list[WordSound] = []
    num_phonemes, at, word_end = 0, 0, 0
    for alignment in alignments:
        at += int(alignment.num_samples)
        if alignment.phoneme == " " and num_phonemes:
            sounds.append(WordSound(num_phonemes, word_end))
            num_phonemes = 0
        elif alignment.phoneme in _MARKS or alignment.phoneme.isalpha():
            num_phonemes += alignment.phoneme not in _MARKS
            word_end = at
    if num_phonemes:
        sounds.append(WordSound(num_phonemes, word_end))
    return sounds


def _with_durations(voice: Path) -> bytes:
    """The voice's graph with one output more, how long each phoneme lasts, if it computes that."""
    model = onnx.load(str(voice))
    with suppress(ValueError):
        add_alignment_output(model)
    graph: bytes = model.SerializeToString()
    return graph
