from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from voice.audio_in import AudioIn
from voice.bench.noises import babbling, quiet_room
from voice.events import LISTEN_RATE_HZ

FRAME = 320
ANY_FLOATS = arrays.arrays(np.float32, st.integers(0, 700), elements=st.floats(width=32))


@settings(deadline=None)
@given(st.lists(ANY_FLOATS, max_size=6))
def test_whatever_comes_what_leaves_is_audio(frames: list[np.ndarray]) -> None:
    audio_in = AudioIn()
    for frame in frames:
        clean = audio_in.feed(frame)
        assert clean.dtype == np.float32
        assert len(clean) == len(frame)
        assert np.isfinite(clean).all()
        assert np.abs(clean).max(initial=0) <= 2.0


def test_damage_is_counted() -> None:
    audio_in = AudioIn()
    audio_in.feed(np.array([np.nan, np.inf, 0.5, 1.0, -3.0], np.float32))
    assert (audio_in.num_damaged, audio_in.num_clipped) == (2, 2)


def test_speech_on_an_offset_loses_the_offset_and_nothing_else() -> None:
    speech = babbling(np.random.default_rng(0), 3)
    audio_in = AudioIn()
    frames = (speech + np.float32(0.2)).reshape(-1, FRAME)
    clean = np.concatenate([audio_in.feed(frame) for frame in frames])
    late = slice(LISTEN_RATE_HZ, None)
    assert abs(clean[late].mean()) < 0.002
    assert np.corrcoef(clean[late], speech[late])[0, 1] > 0.999


def test_a_gap_is_filled_without_a_click_and_ends_in_silence() -> None:
    times = np.arange(10 * FRAME) / LISTEN_RATE_HZ
    tone = (0.3 * np.sin(2 * np.pi * 200 * times)).astype(np.float32)
    audio_in = AudioIn()
    before = np.concatenate([audio_in.feed(frame) for frame in tone.reshape(-1, FRAME)])
    gap = np.concatenate([audio_in.lost(FRAME), audio_in.lost(FRAME), audio_in.lost(2 * FRAME)])
    step = 0.3 * 2 * np.pi * 200 / LISTEN_RATE_HZ
    assert np.abs(np.diff(np.concatenate([before[-10:], gap]))).max() < 1.1 * step
    assert gap[:FRAME].std() > 0.1
    assert not gap[3 * FRAME :].any()
    again = audio_in.feed(tone[:FRAME])
    assert len(again) == FRAME
    assert audio_in.lost(FRAME).std() > 0.1, "the next gap starts anew"


def test_nothing_was_heard_before_the_first_gap() -> None:
    assert not AudioIn().lost(1_000).any()


def test_steady_noise_is_suppressed_and_speech_is_not() -> None:
    pytest.importorskip("webrtc_noise_gain")
    rng = np.random.default_rng(0)
    speech, noise = babbling(rng, 4), quiet_room(rng, 4, 0.02)
    speech[: 2 * LISTEN_RATE_HZ] = 0
    audio_in = AudioIn(noise_suppression=3)
    frames = (speech + noise).reshape(-1, 200)  # no multiple of 10 ms
    clean = np.concatenate([audio_in.feed(frame) for frame in frames])
    quiet = slice(LISTEN_RATE_HZ, 2 * LISTEN_RATE_HZ)
    assert len(clean) > len(speech) - 160
    assert clean[quiet].std() < noise[quiet].std() / 3
    assert clean[2 * LISTEN_RATE_HZ :].std() > speech[2 * LISTEN_RATE_HZ :].std() / 2
