from __future__ import annotations

import numpy as np
import pytest

from voice.audio import resample
from voice.events import Samples
from voice.smart_turn import WINDOW_SAMPLES, SmartTurn, window
from voice.tts import PiperSynthesiser


@pytest.mark.parametrize("num_samples", [1_000, 16_000, WINDOW_SAMPLES, WINDOW_SAMPLES + 5_000])
def test_the_window_ends_with_the_speech(num_samples: int) -> None:
    samples = np.random.default_rng(3).normal(0.1, 0.2, num_samples).astype(np.float32)
    scaled = window(samples)
    assert scaled.shape == (WINDOW_SAMPLES,)
    assert scaled.dtype == np.float32
    assert abs(scaled.mean()) < 1e-4
    assert abs(scaled.var() - 1) < 1e-2
    kept = samples[-WINDOW_SAMPLES:]
    slope = np.corrcoef(kept, scaled[-len(kept) :])[0, 1] if len(kept) > 1 else 1.0
    assert slope == pytest.approx(1.0, abs=1e-4)


def test_silence_is_no_division_by_zero() -> None:
    assert np.isfinite(window(np.zeros(100, np.float32))).all()


def said(synthesiser: PiperSynthesiser, text: str, share: float = 1.0) -> Samples:
    """The first `share` of a sentence and 100 ms of silence, at 16 kHz."""
    spoken = synthesiser.speak(text).samples
    samples = resample(spoken, synthesiser.rate_hz, 16_000)
    end = int((np.flatnonzero(np.abs(samples) > 0.02)[-1]) * share)
    return np.concatenate((samples[:end], np.zeros(1_600, np.float32)))


@pytest.mark.models
def test_whole_sentences_sound_complete_and_broken_ones_do_not(
    endpoint: SmartTurn, synthesiser: PiperSynthesiser
) -> None:
    for text in ("What is the capital of France?", "Set a timer for five minutes.", "Yes."):
        assert endpoint.probability(said(synthesiser, text)) > 0.8, text
    for text in (
        "What is the capital of France and the population of Italy",
        "I would like to order a pizza with mushrooms",
        "When I was in Rome last year I met a man",
    ):
        assert endpoint.probability(said(synthesiser, text, 0.72)) < 0.3, text
