from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.asr import WhisperRecogniser, cut_repetition, stopped_early, window_s
from voice.audio import read_audio, resample
from voice.tts import PiperSynthesiser

T = 50_363
"""The first timestamp, 0.00 s, in the vocabulary of tiny.en."""

PROMPTS = [
    "cannot-complete-as-dialed",
    "check-number-dial-again",
    "conf-now-recording",
    "conf-onlyone",
    "conf-waitforleader",
    "conf-muted",
    "dir-nomatch",
    "transfer",
    "vm-msgforwarded",
    "vm-prev",
    "vm-toenternumber",
    "all-circuits-busy-now",
]
"""Recordings of a human at 8 kHz, among them those that a short window makes Whisper repeat."""


def at(time_s: float) -> int:
    return T + round(time_s / 0.02)


@pytest.mark.parametrize(
    ("tokens", "duration_s", "text"),
    [
        ([], 1.0, []),
        ([at(0), 7, 8, at(1.8)], 2.0, [7, 8]),
        ([at(0), 7, 8, at(2.0), at(2.0), 7, 8, at(4.0)], 2.2, [7, 8]),
        ([at(0), 7, at(1.0), at(1.0), 8, at(3.0), 9], 3.1, [7, 8]),
        ([at(0), 7, 8], 2.0, [7, 8]),
        ([at(0), at(2.0), 7, 8, at(2.0), 9], 2.0, [7, 8]),
        ([at(0), 7, at(1.58), 8], 2.0, [7, 8]),
        ([at(0), 7, at(1.60), 8], 2.0, [7]),
    ],
)
def test_what_is_said_after_the_end_of_the_audio_is_cut(
    tokens: Sequence[int], duration_s: float, text: list[int]
) -> None:
    assert cut_repetition(tokens, first_timestamp=T, duration_s=duration_s) == text


@given(st.lists(st.integers(0, T + 1_500)), st.floats(0.01, 30))
def test_cutting_keeps_a_beginning_of_the_text(tokens: list[int], duration_s: float) -> None:
    text = [token for token in tokens if token < T]
    kept = cut_repetition(tokens, first_timestamp=T, duration_s=duration_s)
    assert kept == text[: len(kept)]
    assert bool(kept) == bool(text)


@pytest.mark.parametrize(("duration_s", "expected"), [(0.1, 5), (2.0, 6), (2.1, 7), (29.0, 30)])
def test_the_window_has_room_for_silence(duration_s: float, expected: int) -> None:
    assert window_s(duration_s) == expected


def word_errors(expected: Sequence[str], heard: Sequence[str]) -> float:
    """Word error rate without case, punctuation and the spelling of digits."""
    rate: float = jiwer.wer([_plain(text) for text in expected], [_plain(text) for text in heard])
    return rate


def _plain(text: str) -> str:
    names = "zero one two three four five six seven eight nine"
    spelt = re.sub(r"\d", lambda digit: f" {names.split(' ')[int(digit[0])]} ", text.lower())
    return " ".join(re.sub(r"[^a-z' ]", " ", spelt).split())


@pytest.mark.models
def test_human_speech_is_understood(
    recogniser: WhisperRecogniser, human_prompt: Callable[[str], tuple[Path, str]]
) -> None:
    prompts = [human_prompt(name) for name in PROMPTS]
    heard = [recogniser.transcribe(read_audio(path)).text for path, _ in prompts]
    assert word_errors([text for _, text in prompts], heard) < 0.08, heard


@pytest.mark.models
def test_the_short_window_hears_what_the_whole_one_hears(
    recogniser: WhisperRecogniser,
    human_prompt: Callable[[str], tuple[Path, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recordings = [read_audio(human_prompt(name)[0]) for name in PROMPTS]
    short = [recogniser.transcribe(samples).text for samples in recordings]
    monkeypatch.setattr("voice.asr.window_s", lambda duration_s: 30)
    whole = [recogniser.transcribe(samples).text for samples in recordings]
    assert word_errors(whole, short) < 0.05, (whole, short)


@pytest.mark.models
def test_silence_gives_no_text(recogniser: WhisperRecogniser) -> None:
    noise = np.random.default_rng(7).normal(0, 1e-3, 32_000).astype(np.float32)
    assert recogniser.transcribe(np.zeros(0, np.float32)).text == ""
    assert len(recogniser.transcribe(noise).text.split()) <= 2


@pytest.mark.models
def test_hot_words_are_spelt_as_they_were_given(synthesiser: PiperSynthesiser) -> None:
    from llm.config import ember_home
    from llm.models.store import ModelStore

    speech = synthesiser.speak("Please call Kaiya Nguyen tomorrow.").samples
    samples = resample(speech, synthesiser.rate_hz, 16_000)
    folder = ModelStore(ember_home()).ensure("whisper-tiny.en")
    plain = WhisperRecogniser(folder, 1).transcribe(samples).text
    told = WhisperRecogniser(folder, 1, hot_words="Kaiya Nguyen").transcribe(samples).text
    assert "Kaiya Nguyen" not in plain
    assert "Kaiya Nguyen" in told


@pytest.mark.models
def test_an_utterance_longer_than_the_window_is_heard_to_its_end(
    recogniser: WhisperRecogniser, synthesiser: PiperSynthesiser
) -> None:
    sentences = [f"This is sentence number {number} of a long story." for number in range(1, 15)]
    speech = np.concatenate([synthesiser.speak(text).samples for text in sentences])
    samples = resample(speech, synthesiser.rate_hz, 16_000)
    assert len(samples) > 30 * 16_000
    text = recogniser.transcribe(samples).text
    assert "number 1 " in text.replace("one", "1")
    assert "number 14 " in text.replace("fourteen", "14")


@pytest.mark.parametrize(
    ("times_s", "duration_s", "early"),
    [
        ([0.0, 5.0], 12.0, True),
        ([0.0, 5.0, 5.0, 11.4], 12.0, False),
        ([0.0, 12.6], 12.0, False),
        ([], 12.0, True),
        ([0.0], 7.9, False),
    ],
)
def test_a_decoder_that_left_speech_is_noticed(
    times_s: list[float], duration_s: float, early: bool
) -> None:
    first = 50_000
    tokens = [token for time_s in times_s for token in (first + round(time_s / 0.02), 7)]
    assert stopped_early(tokens, first_timestamp=first, duration_s=duration_s) is early
