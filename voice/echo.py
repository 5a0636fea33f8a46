"""Tells the echo of Ember's own voice in the microphone from somebody who speaks.

Both signals are seen as energy in bands, every 10 ms. An echo repeats the pattern of what was
played, some time later and softer, whatever the loudspeaker, the room and the codec do to the
wave. Pure; all audio is at LISTEN_RATE_HZ, on the clock of the call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voice.events import LISTEN_RATE_HZ, Samples

HOP = LISTEN_RATE_HZ // 100
"""One column of energies lasts 10 ms."""

MAX_DELAY_MS = 300
"""From sending a sample to its echo: the network, the client's buffer, the room and back."""

ECHO_CORRELATION = 0.72
"""From here on the microphone hears Ember. Its echo reaches 0.87 to 0.98, 0.57 in loud noise; of
somebody else's speech 95 % stays below 0.7."""

WINDOW_MS = 400

_MAX_LAG = MAX_DELAY_MS // 10
_FRAME = 2 * HOP
_BAND_EDGES_HZ = (200, 350, 500, 700, 950, 1_250, 1_600, 2_050, 2_600, 3_300)
_KEPT = 2_048
"""Columns of the past that are kept: 20 s."""
_FLOOR = 1e-5
"""Mean square below which nothing is heard, -50 dB: the pattern of silence is noise."""

Columns = NDArray[np.float32]


class EchoDetector:
    """Compares what was played with what is heard in one call.

    Both are fed without gaps from the same moment on, silence included: `played` what leaves, with
    the gain that it has, resampled to LISTEN_RATE_HZ.
    """

    def __init__(self) -> None:
        self._played = _Energies()
        self._heard = _Energies()

    def played(self, samples: Samples) -> None:
        """What was sent next, float32 [n] at 16 kHz."""
        self._played.feed(samples)

    def heard(self, samples: Samples) -> None:
        """What the microphone gave next, float32 [n] at 16 kHz."""
        self._heard.feed(samples)

    def correlation(self, window_ms: int = WINDOW_MS) -> float:
        """How far the newest `window_ms` heard repeat what was played, from 0 to 1.

        The highest normalised correlation of the energies in decibels over all delays up to
        MAX_DELAY_MS; 0 where nothing was played.
        """
        num_columns = window_ms * LISTEN_RATE_HZ // 1_000 // HOP
        end = min(self._heard.end, self._played.end)
        heard = self._heard.read(end - num_columns, end)
        played = self._played.read(end - num_columns - _MAX_LAG, end)
        windows = np.lib.stride_tricks.sliding_window_view(played, num_columns, axis=0)
        # [lags, bands, columns], each pattern without its mean level in each band.
        patterns = windows - windows.mean(axis=2, keepdims=True)
        pattern = (heard - heard.mean(axis=0)).T
        norms = np.sqrt((patterns**2).sum(axis=(1, 2)) * (pattern**2).sum())
        products = (patterns * pattern).sum(axis=(1, 2))
        # A pattern that hardly moves says nothing: a decibel in each cell is where it begins to.
        is_clear = norms > pattern.size
        correlations = products[is_clear] / norms[is_clear]
        return max(0.0, float(correlations.max(initial=0.0)))


class _Energies:
    """The newest columns of energies of a stream, float32 [columns, bands] in decibels."""

    def __init__(self) -> None:
        # Before the call there was silence.
        self._first = -_KEPT
        shape = (_KEPT, len(_BAND_EDGES_HZ) - 1)
        self._columns: Columns = np.full(shape, 10 * np.log10(_FLOOR), np.float32)
        self._waiting: Samples = np.zeros(0, np.float32)

    @property
    def end(self) -> int:
        """Columns so far."""
        return self._first + len(self._columns)

    def feed(self, samples: Samples) -> None:
        """Take the next samples of the stream."""
        self._waiting = np.concatenate([self._waiting, samples])
        num_new = (len(self._waiting) - _FRAME) // HOP + 1
        if num_new <= 0:
            return
        frames = np.lib.stride_tricks.sliding_window_view(self._waiting, _FRAME)[::HOP]
        self._columns = np.concatenate([self._columns, _energies(frames[:num_new])])
        self._waiting = self._waiting[num_new * HOP :]
        if len(self._columns) > 2 * _KEPT:
            self._first += len(self._columns) - _KEPT
            self._columns = self._columns[-_KEPT:]

    def read(self, start: int, end: int) -> Columns:
        """Columns from start up to end, as far as they are there."""
        first = max(0, start - self._first)
        return self._columns[first : max(first, end - self._first)]


_WINDOW = np.hanning(_FRAME).astype(np.float32)
_BINS = np.searchsorted(np.fft.rfftfreq(_FRAME, 1 / LISTEN_RATE_HZ), _BAND_EDGES_HZ)


def _energies(frames: Samples) -> Columns:
    """float32 [columns, bands] in decibels of frames [columns, _FRAME]."""
    power = np.abs(np.fft.rfft(frames * _WINDOW, axis=1)) ** 2 / _FRAME
    bands = np.add.reduceat(power, _BINS, axis=1)[:, :-1]
    return (10 * np.log10(bands + _FLOOR)).astype(np.float32)
