from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.events import Samples
from voice.hearing import Hearing, Tape
from voice.vad import GateEvent, SpeechStarted, SpeechStopped, VadSettings


class LevelVad:
    def probability(self, window: Samples) -> float:
        return float(np.abs(window).max())


def hear(parts: list[tuple[float, float]], frame: int) -> tuple[Hearing, list[GateEvent]]:
    """parts: (seconds, level)."""
    sound = [np.full(round(seconds * 16_000), level, np.float32) for seconds, level in parts]
    samples = np.concatenate(sound)
    hearing = Hearing(LevelVad(), VadSettings(min_speech_ms=96, min_silence_ms=96))
    events = []
    for start in range(0, len(samples), frame):
        events += hearing.feed(samples[start : start + frame])
    return hearing, events


@pytest.mark.parametrize("frame", [1, 160, 320, 333, 512, 16_000])
def test_frames_of_any_length_give_the_same_speech(frame: int) -> None:
    _, events = hear([(0.512, 0.0), (0.64, 0.9), (0.512, 0.0), (0.256, 0.9), (0.2, 0)], frame)
    assert events == [
        SpeechStarted(8_192),
        SpeechStopped(18_432),
        SpeechStarted(26_624),
        SpeechStopped(30_720),
    ]


def test_a_new_silence_is_told_for_one_window() -> None:
    hearing = Hearing(LevelVad())
    told: list[int | None] = []
    for level in (0.9,) * 4 + (0.0,) * 2 + (0.9,) * 2 + (0.0,) * 5:
        hearing.feed(np.full(512, level, np.float32))
        told.append(hearing.new_silence)
    assert [at for at in told if at is not None] == [4 * 512, 8 * 512]


def test_audio_is_kept_until_it_is_forgotten() -> None:
    samples = np.arange(160_000, dtype=np.float32)
    hearing = Hearing(LevelVad())
    hearing.feed(samples)
    np.testing.assert_array_equal(hearing.audio(1_000, 1_500), samples[1_000:1_500])
    assert hearing.now == 160_000
    hearing.forget(150_000)
    np.testing.assert_array_equal(hearing.audio(151_000, 999_999), samples[151_000:])
    hearing.feed(samples[:100])
    np.testing.assert_array_equal(hearing.audio(160_000, 160_100), samples[:100])


@given(st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 30_000))))
def test_a_tape_is_a_stream(moves: list[tuple[int, int]]) -> None:
    tape, whole = Tape(), np.zeros(0, np.float32)
    kept = 0
    for number, (length, back) in enumerate(moves):
        piece = np.full(length, number, np.float32)
        tape.append(piece)
        whole = np.concatenate((whole, piece))
        kept = max(kept, len(whole) - back)
        tape.forget(kept)
        assert tape.end == len(whole)
        np.testing.assert_array_equal(tape.read(kept, tape.end), whole[kept:])
