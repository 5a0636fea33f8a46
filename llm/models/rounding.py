"""Weights in 8 bits with one scale for each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def quantize_channels(
    weight: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """weight: [out, in]. Returns int8 [out, in] within ±127 and the scale of each row, [out]."""
    scale = np.maximum(np.abs(weight).max(axis=1), 1e-12).astype(np.float32) / 127
    return np.rint(weight / scale[:, None]).astype(np.int8), scale
