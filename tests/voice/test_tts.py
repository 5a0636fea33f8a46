from __future__ import annotations

import jiwer
import numpy as np
import pytest

from voice.asr import WhisperRecogniser
from voice.audio import resample
from voice.tts import PiperSynthesiser, trim_start

RATE_HZ = 1_000


def test_silence_at_the_start_is_cut_to_10_ms() -> None:
    samples = np.concatenate((np.full(80, 0.01), np.full(50, 0.5), np.zeros(40)))
    trimmed = trim_start(samples.astype(np.float32), RATE_HZ)
    np.testing.assert_array_equal(trimmed, samples[70:].astype(np.float32))


def test_sound_from_the_start_is_kept_whole() -> None:
    samples = np.full(50, -0.5, np.float32)
    np.testing.assert_array_equal(trim_start(samples, RATE_HZ), samples)


def test_what_cannot_be_heard_is_nothing() -> None:
    assert trim_start(np.full(50, 0.01, np.float32), RATE_HZ).size == 0


@pytest.mark.models
@pytest.mark.parametrize("text", ["", " ", "...", "!", "\U0001f600"])
def test_nothing_speakable_yields_nothing(synthesiser: PiperSynthesiser, text: str) -> None:
    assert list(synthesiser.synthesise(text)) == []


SENTENCES = [
    "The capital of France is Paris.",
    "Please call me back tomorrow morning.",
    "It is raining outside, so take an umbrella.",
    "Her meeting starts at half past nine.",
    "Plants need light and water to grow.",
]


@pytest.mark.models
def test_speech_starts_at_once_and_is_understood(
    synthesiser: PiperSynthesiser, recogniser: WhisperRecogniser
) -> None:
    heard = []
    for sentence in SENTENCES:
        speech = np.concatenate(list(synthesiser.synthesise(sentence)))
        assert speech.dtype == np.float32
        assert 0.1 < np.abs(speech).max() <= 1.0
        assert np.abs(speech[: synthesiser.rate_hz * 15 // 1_000]).max() > 0.01
        heard.append(recogniser.transcribe(resample(speech, synthesiser.rate_hz, 16_000)).text)
    # The voice varies from run to run, so a word may be misheard; all together must be clear.
    assert jiwer.wer(_plain(SENTENCES), _plain(heard)) < 0.2, heard


def _plain(texts: list[str]) -> str:
    return " ".join(texts).lower().replace(".", "").replace(",", "")
