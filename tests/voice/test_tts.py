from __future__ import annotations

import jiwer
import numpy as np
import pytest

from voice.asr import WhisperRecogniser
from voice.audio import resample
from voice.tts import PiperSynthesiser


@pytest.mark.models
@pytest.mark.parametrize("text", ["", " ", "...", "!", "\U0001f600"])
def test_nothing_speakable_yields_nothing(synthesiser: PiperSynthesiser, text: str) -> None:
    assert synthesiser.speak(text).samples.size == 0


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
        speech = synthesiser.speak(sentence).samples
        assert speech.dtype == np.float32
        assert 0.1 < np.abs(speech).max() <= 1.0
        assert np.abs(speech[: synthesiser.rate_hz * 15 // 1_000]).max() > 0.01
        heard.append(recogniser.transcribe(resample(speech, synthesiser.rate_hz, 16_000)).text)
    # The voice varies from run to run, so a word may be misheard; all together must be clear.
    assert jiwer.wer(_plain(SENTENCES), _plain(heard)) < 0.2, heard


def _plain(texts: list[str]) -> str:
    return " ".join(texts).lower().replace(".", "").replace(",", "")
