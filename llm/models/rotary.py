"""Rotary positions: how fast each pair of a head turns, and what longer contexts do to that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """Stretches positions beyond those that a model was first trained on.

    kind: `llama3` leaves fast pairs as they are, slows slow ones down by `factor` and blends
    between (Llama 3.1); `yarn` does so by full turns in the original context, and scales what
    rotates by `amplitude` (YaRN, arXiv 2309.00071, sections 3.2 and 3.4). original_context: in
    positions. fast, slow: turns in the original context above and below which a pair counts as
    one or the other. query_growth: queries beyond the original context are made longer, see
    `query_scales`.
    """

    kind: Literal["llama3", "yarn"]
    factor: float
    original_context: int
    fast: float
    slow: float
    amplitude: float = 1.0
    query_growth: float = 0.0


def yarn_amplitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN recommends for a stretch by `factor` (section 3.4, equation 22).

    scale: multiplies the part that grows with the factor.
    """
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def query_scales(scaling: RotaryScaling, num_positions: int) -> NDArray[np.float64]:
    """What multiplies a query at each position, [num_positions] (Llama 4, Ministral 3).

    It grows with the logarithm of how many original contexts lie before the position.
    """
    whole = np.arange(num_positions) // scaling.original_context
    return 1 + scaling.query_growth * np.log1p(whole)


def pair_speeds(
    size: int, theta: float, scaling: RotaryScaling | None = None
) -> NDArray[np.float64]:
    """Radians by which each pair turns from one position to the next, [size / 2].

    size: how many values of a head rotate. theta: base (RoFormer, arXiv 2104.09864, 3.2.2).
    """
    speeds: NDArray[np.float64] = theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    if scaling is None:
        return speeds
    if scaling.kind == "llama3":
        turns = scaling.original_context * speeds / (2 * math.pi)
        kept = (turns - scaling.slow) / (scaling.fast - scaling.slow)
    else:
        # YaRN blends linearly in the index of the pair, between the two that turn so often.
        first = math.floor(_pair_that_turns(scaling.fast, size, theta, scaling))
        last = math.ceil(_pair_that_turns(scaling.slow, size, theta, scaling))
        first, last = max(first, 0), min(last, size - 1)
        kept = 1 - (np.arange(size // 2) - first) / max(last - first, 0.001)
    kept = np.clip(kept, 0, 1)
    return speeds * kept + speeds / scaling.factor * (1 - kept)


def _pair_that_turns(turns: float, size: int, theta: float, scaling: RotaryScaling) -> float:
    """Index of the pair, in general between two, that turns so often in the original context."""
    longest = scaling.original_context / (turns * 2 * math.pi)
    return size * math.log(longest) / (2 * math.log(theta))
