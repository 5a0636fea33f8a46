from __future__ import annotations

import numpy as np
import pytest

from voice.bench.noises import babbling, echo_of, quiet_room
from voice.echo import ECHO_CORRELATION, MAX_DELAY_MS, EchoDetector
from voice.events import LISTEN_RATE_HZ, Samples
from voice.noise_floor import NoiseFloor

FRAME = 320


def correlations(played: Samples, heard: Samples, window_ms: int = 400) -> np.ndarray:
    """For each frame of 20 ms from the first second on."""
    detector, found = EchoDetector(), []
    for start in range(0, len(heard) - FRAME + 1, FRAME):
        detector.played(played[start : start + FRAME])
        detector.heard(heard[start : start + FRAME])
        if start > LISTEN_RATE_HZ:
            found.append(detector.correlation(window_ms))
    return np.array(found)


@pytest.mark.parametrize("delay_ms", [0, 20, 80, 155, 270])
@pytest.mark.parametrize("gain_db", [-6, -12, -24])
def test_an_echo_is_found_at_every_delay_and_loudness(delay_ms: int, gain_db: int) -> None:
    rng = np.random.default_rng(delay_ms)
    played = babbling(rng, 4)
    heard = echo_of(played, delay_ms, gain_db, rng) + quiet_room(rng, 4, 0.0005)
    assert correlations(played, heard).min() > ECHO_CORRELATION


@pytest.mark.parametrize("seed", range(5))
def test_somebody_else_is_no_echo(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = correlations(babbling(rng, 6), babbling(rng, 6))
    assert np.quantile(found, 0.9) < ECHO_CORRELATION
    assert np.median(found) < 0.6


def test_somebody_who_speaks_through_the_echo_is_no_echo() -> None:
    rng = np.random.default_rng(1)
    played, user = babbling(rng, 6), babbling(rng, 6)
    found = correlations(played, user + echo_of(played, 80, -12, rng))
    assert np.quantile(found, 0.9) < ECHO_CORRELATION


def test_an_echo_later_than_the_longest_delay_is_not_found() -> None:
    rng = np.random.default_rng(2)
    played = babbling(rng, 6)
    found = correlations(played, echo_of(played, MAX_DELAY_MS + 200, -12))
    assert np.median(found) < 0.6


def test_silence_and_steady_noise_say_nothing() -> None:
    rng = np.random.default_rng(3)
    silence = np.zeros(3 * LISTEN_RATE_HZ, np.float32)
    assert not correlations(silence, silence).any()
    assert not correlations(silence, babbling(rng, 3)).any()
    assert not correlations(babbling(rng, 3), silence).any()
    assert correlations(quiet_room(rng, 3, 0.05), quiet_room(rng, 3, 0.05)).max() < 0.5


def test_it_works_in_frames_of_any_length_and_for_long_calls() -> None:
    rng = np.random.default_rng(4)
    played = babbling(rng, 60)
    heard = echo_of(played, 80, -12)
    at_once, in_pieces = EchoDetector(), EchoDetector()
    at_once.played(played)
    at_once.heard(heard)
    start = 0
    while start < len(played):
        length = int(rng.integers(1, 3_000))
        in_pieces.played(played[start : start + length])
        in_pieces.heard(heard[start : start + length])
        start += length
    assert at_once.correlation() == pytest.approx(in_pieces.correlation())
    assert at_once.correlation() > 0.9
    assert EchoDetector().correlation() == 0.0


def test_the_floor_is_what_is_always_there() -> None:
    rng = np.random.default_rng(5)
    floor = NoiseFloor()
    assert floor.above_db == 0.0
    floor.feed(quiet_room(rng, 3, 0.01))
    assert floor.above_db < 3
    floor.feed(quiet_room(rng, 0.3, 0.1))
    assert floor.above_db == pytest.approx(20, abs=3)
    floor.feed(quiet_room(rng, 6, 0.1))
    assert floor.above_db < 3, "what stays is the new floor"


def test_the_floor_in_frames_of_20_ms() -> None:
    floor = NoiseFloor()
    for _ in range(20):
        floor.feed(np.full(FRAME, 0.01, np.float32))
    for _ in range(10):
        floor.feed(np.full(FRAME, 0.1, np.float32))
    assert floor.above_db == pytest.approx(20, abs=0.1)
