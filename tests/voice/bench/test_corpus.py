from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.voice.session_fakes import tone
from voice.bench.corpus import TAIL_S, CorpusStore, place
from voice.bench.texts import PAUSED, QUESTIONS
from voice.tts import Utterance


class FakeVoice:
    """Says a tone that is as long as the text."""

    rate_hz = 22_050

    def __init__(self) -> None:
        self.said: list[str] = []

    def speak(self, text: str, manner: object) -> Utterance:
        self.said.append(text)
        return Utterance(tone(0.05 * len(text.split())), ())


def store(folder: Path, voice: FakeVoice) -> CorpusStore:
    make: Callable[[], FakeVoice] = lambda: voice  # noqa: E731 - a typed one
    return CorpusStore(folder, make)  # type: ignore[arg-type]


def test_the_end_of_speech_is_exact() -> None:
    speech = np.concatenate([np.zeros(700), np.full(8_000, 0.3), np.zeros(900)])
    found = place("q", "Yes?", [speech.astype(np.float32)], 0, np.random.default_rng(0))
    loud = np.flatnonzero(np.abs(found.samples) > 0.1)
    assert (found.starts, found.speech_end) == (loud[0], loud[-1] + 1)
    assert len(found.samples) - found.speech_end == TAIL_S * 16_000
    tail = found.samples[found.speech_end :]
    assert 0.0005 < tail.std() < 0.002, "a room is never quite silent"


def test_the_pause_lies_between_the_parts() -> None:
    part = np.full(4_000, 0.3, np.float32)
    found = place("q", "I, well.", [part, part], 500, np.random.default_rng(0))
    assert found.pause is not None
    assert found.pause_ms == 500
    assert np.abs(found.samples[slice(*found.pause)]).max() < 0.01
    assert found.pause[0] == found.starts + 4_000
    assert found.speech_end == found.pause[1] + 4_000


def test_a_corpus_is_made_once(tmp_path: Path) -> None:
    voice, again = FakeVoice(), FakeVoice()
    first = store(tmp_path / "corpus", voice).load()
    second = store(tmp_path / "corpus", again).load()
    assert len(voice.said) >= 50
    assert again.said == []
    for one, other in zip(first.questions, second.questions, strict=True):
        np.testing.assert_array_equal(one.samples, other.samples)
    assert [question.text for question in first.questions] == list(QUESTIONS)
    assert len(first.paused) == len(PAUSED)
    assert all(300 <= recording.pause_ms <= 900 for recording in first.paused)
    assert len({recording.pause_ms for recording in first.paused}) > 8
    (tmp_path / "corpus").joinpath("question-00-stray.part.npy").touch()
    assert store(tmp_path / "corpus", again).load().questions


def test_fifty_questions_at_least() -> None:
    assert len(set(QUESTIONS)) >= 50
    with pytest.raises(IndexError):
        place("q", "", [np.zeros(100, np.float32)], 0, np.random.default_rng(0))
