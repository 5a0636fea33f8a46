"""How far what is heard stands out of what is always there."""

from __future__ import annotations

from collections import deque

import numpy as np

from voice.events import LISTEN_RATE_HZ, Samples

_BLOCK_SAMPLES = LISTEN_RATE_HZ // 10
_LEVEL_BLOCKS = 2
_FLOOR_BLOCKS = 50
_SILENCE_DB = -90.0


class NoiseFloor:
    """The quietest 200 ms of the last 5 s are the floor. Nobody talks for so long without a breath.

    The floor is the level before speech begins, then: voices in the background raise it with them,
    so that only a nearer voice stands out.
    """

    def __init__(self) -> None:
        self._powers: deque[float] = deque(maxlen=_FLOOR_BLOCKS)
        self._waiting: Samples = np.zeros(0, np.float32)

    def feed(self, samples: Samples) -> None:
        """The next samples, float32 [n] at 16 kHz."""
        self._waiting = np.concatenate([self._waiting, samples])
        while len(self._waiting) >= _BLOCK_SAMPLES:
            block, self._waiting = np.split(self._waiting, [_BLOCK_SAMPLES])
            self._powers.append(float(np.mean(block**2)))

    @property
    def above_db(self) -> float:
        """The level of the newest 200 ms above the floor, 0 or more."""
        if len(self._powers) < _LEVEL_BLOCKS:
            return 0.0
        powers = np.convolve(self._powers, np.full(_LEVEL_BLOCKS, 1 / _LEVEL_BLOCKS), "valid")
        levels = np.maximum(10 * np.log10(powers + 1e-12), _SILENCE_DB)
        return float(levels[-1] - levels.min())
