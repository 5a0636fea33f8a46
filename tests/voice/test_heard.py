from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from faster_whisper import WhisperModel
from hypothesis import given, settings
from hypothesis import strategies as st
from piper.config import SynthesisConfig

from llm.config import ember_home
from llm.models.store import ModelStore
from voice.audio import resample
from voice.heard import SpokenClause, WordSound, aligned_ends, heard_text, shared_ends
from voice.normalise import speakable
from voice.transcript import words_of
from voice.tts import PiperSynthesiser


def sounds(*lengths: int, samples: int = 100) -> list[WordSound]:
    ends = np.cumsum(lengths) * samples
    return [WordSound(length, int(end)) for length, end in zip(lengths, ends, strict=True)]


@pytest.mark.parametrize(
    ("words", "lengths", "ends"),
    [
        ("the cat sat", (2, 3, 3), [200, 500, 800]),
        # "1990" is spoken as three words.
        ("in 1990 again", (2, 7, 7, 3, 5), [200, 1900, 2400]),
        # "of the" is spoken as one.
        ("out of the house", (2, 4, 3), [200, 425, 600, 900]),
        ("yes \U0001f600 sir", (3, 2), [300, 300, 500]),
        ("word", (4, 3), [700]),
    ],
)
def test_words_are_paired_with_what_is_spoken(
    words: str, lengths: tuple[int, ...], ends: list[int]
) -> None:
    found = aligned_ends(words.split(), sounds(*lengths))
    assert found == pytest.approx(ends, abs=80)


WORDS = st.lists(
    st.sampled_from(["a", "the", "coal", "1990", "$5", "\U0001f600", "extraordinary"]),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(WORDS, st.lists(st.integers(1, 12), max_size=25))
def test_ends_rise_and_there_is_one_for_each_word(words: list[str], lengths: list[int]) -> None:
    clause = SpokenClause.of(" ".join(words), 2_000, sounds(*lengths))
    assert len(clause.word_ends) == len(words)
    assert all(a <= b for a, b in pairwise([0, *clause.word_ends, 2_000]))


@settings(deadline=None)
@given(WORDS, st.lists(st.integers(0, 9_000), min_size=2, max_size=2))
def test_more_samples_are_never_fewer_words(words: list[str], counts: list[int]) -> None:
    clauses = [SpokenClause.of(" ".join(words), 3_000), SpokenClause.of("and so on", 1_000)]
    less, more = (heard_text(clauses, count) for count in sorted(counts))
    assert more.text.startswith(less.text)
    assert more.num_words >= less.num_words


def test_a_word_counts_when_half_of_it_was_heard() -> None:
    clauses = [
        SpokenClause("An ember", 1_000, (200, 800)),
        SpokenClause("is glowing.", 1_000, (300, 900)),
    ]
    cases = {0: "", 100: "", 101: "An", 501: "An ember", 1_150: "An ember", 1_151: "An ember is"}
    for num_heard, text in cases.items():
        heard = heard_text(clauses, num_heard)
        assert (heard.text, heard.is_whole) == (text, False)
        assert heard.for_history == f"{text}\u2014"
    whole = heard_text(clauses, 1_601)
    assert whole.is_whole
    assert whole.for_history == "An ember is glowing."


def test_without_sounds_words_share_the_clause() -> None:
    assert shared_ends(["to", "extraordinary", "42"], 260) == [30, 170, 260]
    assert heard_text([], 5).is_whole


SENTENCES = [
    "My best friend lives in a small house near the beach.",
    "Please call me back tomorrow morning, because I will be at home.",
    "Plants need light and water to grow, and so do people.",
]


@pytest.mark.models
def test_real_speech_within_one_word_of_what_a_recogniser_hears(
    synthesiser: PiperSynthesiser,
) -> None:
    """The recogniser's own word times are the judge: at every 50 ms, one word apart at most."""
    folder = ModelStore(ember_home()).ensure("whisper-tiny.en")
    recogniser = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)
    # Without its noise the voice says the same each time.
    plain = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0, normalize_audio=False)
    differences: list[int] = []
    for sentence in SENTENCES:
        utterance = synthesiser.speak(speakable(sentence), plain)
        clause = utterance.spoken(sentence)
        audio = np.pad(resample(utterance.samples, synthesiser.rate_hz, 16_000), (0, 8_000))
        words = words_heard(recogniser, audio)
        assert words_of(" ".join(word for word, _ in words)) == words_of(sentence)
        begins = [0.0, *(end for _, end in words)]
        for ms in range(0, len(audio) // 16, 50):
            heard = heard_text([clause], ms * synthesiser.rate_hz // 1_000).num_words
            judged = sum(ms > (a + b) / 2 for a, b in pairwise(begins))
            differences.append(heard - judged)
    assert max(map(abs, differences)) <= 1
    assert np.mean(np.array(differences) == 0) > 0.6, differences


def words_heard(recogniser: WhisperModel, audio: np.ndarray) -> list[tuple[str, float]]:
    """Each word with the millisecond at which it ends."""
    segments, _ = recogniser.transcribe(audio, language="en", word_timestamps=True)
    words = [word for segment in segments for word in segment.words or ()]
    return [(word.word.strip(), word.end * 1_000) for word in words]
