"""Speech to text.

Whisper was trained on windows of 30 s, and its encoder's time grows with the window. So it gets
only the frames that the utterance needs, and some silence: with little or none the decoder does
not see that the speech is over and says it again and again. Measured with tiny.en on 80 recorded
telephone prompts (2 cores): the whole window 478 ms to encode and 6.2 % word errors; the utterance
plus 4 s 81 ms and 5.9 %; the utterance plus 0.5 s 50 ms and 12.5 %. Timestamps are decoded because
they tell where the words end, so that what is said again after the end of the audio can be cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.transcribe import get_ctranslate2_storage, get_suppressed_tokens

from voice.events import LISTEN_RATE_HZ, Samples
from voice.hallucination import (
    MIN_MEAN_LOG_PROBABILITY,
    NO_SPEECH_PROBABILITY,
    cut_loops,
    is_made_up,
    is_phantom,
)

WINDOW_S = 30
_ONE_SENTENCE_S = 8.0
_MOST_LEFT_S = 1.0
"""The window that Whisper was trained on, and its limit for one pass."""

_SILENCE_AFTER_S = 4
_HOP_SAMPLES = 160
_SECONDS_PER_TIMESTAMP = 0.02
# A last word is often stamped a little before the audio, which ends with some silence, is over.
_END_TOLERANCE_S = 0.4
# Fast speech has about 5 words, or 7 tokens, a second. It bounds what a decoder gone wrong costs.
_TOKENS_PER_S = 7
_SPARE_TOKENS = 10
# A prompt takes time to read, and above this the decoder begins to repeat it.
_MAX_PROMPT_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was understood; empty where there was no speech."""

    text: str


class Recogniser(Protocol):
    """Turns an utterance into text."""

    def transcribe(self, samples: Samples) -> Transcript:
        """samples: mono float32 [n] at 16 kHz, n > 0."""
        ...


class WhisperRecogniser:
    """Whisper in CTranslate2's format, int8 on the CPU.

    folder: model.bin, config.json, tokenizer.json and the vocabulary. num_threads: 1 or more.
    hot_words: names and terms to expect, as in "Ember, Zermatt"; they are put before the decoder
    as if they had been said. Multilingual models are told to expect English.
    """

    def __init__(self, folder: Path, num_threads: int, hot_words: str = "") -> None:
        self._whisper = WhisperModel(
            str(folder), device="cpu", compute_type="int8", cpu_threads=num_threads
        )
        self._tokenizer = Tokenizer(
            self._whisper.hf_tokenizer,
            self._whisper.model.is_multilingual,
            task="transcribe",
            language="en",
        )
        self._suppressed = list(get_suppressed_tokens(self._tokenizer, [-1]))
        self._hot_words = hot_words.strip()
        self._prompt = self._prompt_tokens()

    def transcribe(self, samples: Samples) -> Transcript:
        """Transcribe an utterance, in one pass up to 29 s, in windows of 30 s above."""
        if len(samples) == 0:
            return Transcript("")
        if len(samples) > (WINDOW_S - 1) * LISTEN_RATE_HZ:
            return self._transcribe_in_windows(samples)
        duration_s = len(samples) / LISTEN_RATE_HZ
        result = self._decode(self._features(samples), duration_s)
        tokens: list[int] = result.sequences_ids[0]
        # The score is the sum of log probabilities over the number of tokens, without the end.
        mean_log_probability = result.scores[0] * len(tokens) / (len(tokens) + 1)
        if is_made_up(result.no_speech_prob, mean_log_probability):
            return Transcript("")
        first_timestamp = self._tokenizer.timestamp_begin
        if stopped_early(tokens, first_timestamp=first_timestamp, duration_s=duration_s):
            return self._transcribe_in_windows(samples)
        spoken = cut_repetition(tokens, first_timestamp=first_timestamp, duration_s=duration_s)
        text = cut_loops(self._tokenizer.decode(spoken).strip())
        phantom = is_phantom(text, result.no_speech_prob, mean_log_probability)
        return Transcript("" if phantom else text)

    def _prompt_tokens(self) -> list[int]:
        """What the decoder reads first: the hot words, as text said before, and the task."""
        start: list[int] = list(self._tokenizer.sot_sequence)
        if not self._hot_words:
            return start
        words: list[int] = self._tokenizer.encode(f" {self._hot_words}")
        return [self._tokenizer.sot_prev, *words[:_MAX_PROMPT_TOKENS], *start]

    def _features(self, samples: Samples) -> np.ndarray:
        """Log-mel features [1, mels, frames] of the utterance and the silence after it."""
        num_samples = window_s(len(samples) / LISTEN_RATE_HZ) * LISTEN_RATE_HZ
        padded = np.pad(samples, (0, num_samples - len(samples)))
        features = self._whisper.feature_extractor(padded, padding=0)
        return np.ascontiguousarray(features[None, :, : num_samples // _HOP_SAMPLES], np.float32)

    def _decode(self, features: np.ndarray, duration_s: float):  # type: ignore[no-untyped-def] # noqa: ANN202 - CTranslate2 has no types
        num_new = _SPARE_TOKENS + math.ceil(_TOKENS_PER_S * duration_s)
        return self._whisper.model.generate(
            self._whisper.model.encode(get_ctranslate2_storage(features)),
            [self._prompt],
            beam_size=1,
            max_length=len(self._prompt) + num_new,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_tokens=self._suppressed,
        )[0]

    def _transcribe_in_windows(self, samples: Samples) -> Transcript:
        segments, _ = self._whisper.transcribe(
            samples,
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            no_speech_threshold=NO_SPEECH_PROBABILITY,
            log_prob_threshold=MIN_MEAN_LOG_PROBABILITY,
            hotwords=self._hot_words or None,
        )
        return Transcript(cut_loops(" ".join(segment.text.strip() for segment in segments)))


def window_s(duration_s: float) -> int:
    """How many whole seconds the encoder gets for an utterance of `duration_s`."""
    return min(WINDOW_S, math.ceil(duration_s) + _SILENCE_AFTER_S)


def cut_repetition(tokens: Sequence[int], *, first_timestamp: int, duration_s: float) -> list[int]:
    """Keep the text up to the first timestamp at the end of the audio; drop all timestamps.

    tokens: the decoder's output; ids from `first_timestamp` on are times in steps of 20 ms.
    duration_s: length of the utterance without the silence added after it.
    """
    text: list[int] = []
    for token in tokens:
        if token < first_timestamp:
            text.append(token)
        elif text:
            time_s = (token - first_timestamp) * _SECONDS_PER_TIMESTAMP
            if time_s >= duration_s - _END_TOLERANCE_S:
                break
    return text


def stopped_early(tokens: Sequence[int], *, first_timestamp: int, duration_s: float) -> bool:
    """Whether the decoder ended with speech left, as it does between sentences of long utterances.

    Arguments as for `cut_repetition`. Short utterances are one sentence and never stop early.
    """
    if duration_s <= _ONE_SENTENCE_S:
        return False
    times_s = [
        (t - first_timestamp) * _SECONDS_PER_TIMESTAMP for t in tokens if t >= first_timestamp
    ]
    return max(times_s, default=0.0) < duration_s - _MOST_LEFT_S
