"""Sounds that are no speech to Ember, float32 at 16 kHz: echoes, coughs, typing, a crowd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voice.events import LISTEN_RATE_HZ, Samples

Rng = np.random.Generator


def quiet_room(rng: Rng, duration_s: float, level: float = 0.001) -> Samples:
    """Steady noise of this root mean square."""
    return rng.normal(0, level, int(duration_s * LISTEN_RATE_HZ)).astype(np.float32)


def band_noise(rng: Rng, duration_s: float, low_hz: float, high_hz: float) -> Samples:
    """Noise of one band, of level 1."""
    num_samples = int(duration_s * LISTEN_RATE_HZ)
    spectrum = np.fft.rfft(rng.normal(0, 1, num_samples))
    hz = np.fft.rfftfreq(num_samples, 1 / LISTEN_RATE_HZ)
    spectrum[(hz < low_hz) | (hz > high_hz)] = 0
    noise = np.fft.irfft(spectrum, num_samples)
    return np.asarray(noise / noise.std(), np.float32)


def babbling(rng: Rng, duration_s: float) -> Samples:
    """Like speech to an ear for patterns: bands that come and go, each on its own."""
    bands = [(200, 500), (500, 950), (950, 1_600), (1_600, 2_600), (2_600, 3_400)]
    num_syllables = int(duration_s * 6) + 2
    times = np.arange(int(duration_s * LISTEN_RATE_HZ)) / LISTEN_RATE_HZ
    speech = np.zeros(len(times), np.float32)
    for low, high in bands:
        levels = 10 ** rng.uniform(-2.5, -1, num_syllables)
        envelope = np.interp(times * 6, np.arange(num_syllables), levels)
        speech += (envelope * band_noise(rng, duration_s, low, high)).astype(np.float32)
    return speech


def echo_of(played: Samples, delay_ms: int, gain_db: float, room: Rng | None = None) -> Samples:
    """What a microphone gets of it; room: with reverberation of 100 ms."""
    delay = delay_ms * LISTEN_RATE_HZ // 1_000
    echo = np.pad(played, (delay, 0))[: len(played)] * np.float32(10 ** (gain_db / 20))
    if room is None:
        return echo
    times = np.arange(LISTEN_RATE_HZ // 10)
    response = room.normal(0, 0.07, len(times)) * np.exp(-times / 300)
    response[0] = 1.0
    return np.convolve(echo, response)[: len(echo)].astype(np.float32)


def cough(rng: Rng) -> Samples:
    """A burst with the resonances of a throat, and often a second one."""
    bursts = []
    for _ in range(rng.integers(1, 3)):
        duration_s = rng.uniform(0.12, 0.25)
        times = np.arange(int(duration_s * LISTEN_RATE_HZ)) / LISTEN_RATE_HZ
        shape = np.minimum(1, times / 0.01) * np.exp(-times / rng.uniform(0.04, 0.08))
        throat = band_noise(rng, duration_s, 300, 900) + 0.7 * band_noise(
            rng, duration_s, 1_000, 4_000
        )
        bursts += [0.2 * shape * throat, np.zeros(int(rng.uniform(0.1, 0.25) * LISTEN_RATE_HZ))]
    return np.concatenate(bursts).astype(np.float32)


def typing(rng: Rng) -> Samples:
    """Two seconds of keys."""
    keys = np.zeros(2 * LISTEN_RATE_HZ, np.float32)
    for at in np.cumsum(rng.uniform(0.08, 0.25, 9)):
        click = band_noise(rng, 0.012, 1_500, 7_000) * np.exp(-np.arange(192) / 40)
        start = int(at * LISTEN_RATE_HZ)
        if start + len(click) < len(keys):
            keys[start : start + len(click)] += (0.1 * click).astype(np.float32)
    return keys


def crowd(rng: Rng, voices: Sequence[Samples], duration_s: float, level: float) -> Samples:
    """Twelve people at once, far away: none of them can be made out."""
    num_samples = int(duration_s * LISTEN_RATE_HZ)
    total = np.zeros(num_samples, np.float32)
    for _ in range(12):
        voice = voices[int(rng.integers(len(voices)))]
        rolled = np.roll(np.resize(voice, num_samples), rng.integers(num_samples))
        total += rolled * rng.uniform(0.5, 1.0)
    return np.asarray(total / total.std() * level, np.float32)
