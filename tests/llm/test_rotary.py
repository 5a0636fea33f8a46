"""Rotary speeds against the published formulas, written out pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llm.models.rotary import RotaryScaling, pair_speeds, query_scales, yarn_amplitude


def llama3_by_wavelength(size: int, theta: float, s: RotaryScaling) -> list[float]:
    """As Llama 3.1 says it: by wavelengths, in three cases."""
    speeds = []
    for pair in range(size // 2):
        speed = 1 / theta ** (2 * pair / size)
        wavelength = 2 * math.pi / speed
        if wavelength < s.original_context / s.fast:
            speeds.append(speed)
        elif wavelength > s.original_context / s.slow:
            speeds.append(speed / s.factor)
        else:
            smooth = (s.original_context / wavelength - s.slow) / (s.fast - s.slow)
            speeds.append((1 - smooth) * speed / s.factor + smooth * speed)
    return speeds


def yarn_by_ramp(size: int, theta: float, s: RotaryScaling) -> list[float]:
    """Extrapolated and interpolated speeds, mixed by a ramp over the index of the pair."""

    def pair(turns: float) -> float:
        return size * math.log(s.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(s.fast)), 0), min(math.ceil(pair(s.slow)), size - 1)
    speeds = []
    for index in range(size // 2):
        ramp = min(1.0, max(0.0, (index - low) / (high - low)))
        extrapolated = 1 / theta ** (2 * index / size)
        speeds.append(extrapolated / s.factor * ramp + extrapolated * (1 - ramp))
    return speeds


@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("factor", [2.0, 8.0, 32.0])
def test_llama3(size: int, factor: float) -> None:
    scaling = RotaryScaling("llama3", factor, 8192, fast=4.0, slow=1.0)
    expected = llama3_by_wavelength(size, 500_000.0, scaling)
    np.testing.assert_allclose(pair_speeds(size, 500_000.0, scaling), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("factor", [2.0, 4.0, 16.0])
@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_yarn(size: int, factor: float, theta: float) -> None:
    scaling = RotaryScaling("yarn", factor, 4096, fast=32.0, slow=1.0)
    expected = yarn_by_ramp(size, theta, scaling)
    np.testing.assert_allclose(pair_speeds(size, theta, scaling), expected, rtol=1e-12)


def test_without_scaling_the_first_pair_turns_by_one_radian() -> None:
    speeds = pair_speeds(8, 10_000.0)
    np.testing.assert_allclose(speeds, [1, 0.1, 0.01, 0.001])


def test_the_amplitude_of_the_paper() -> None:
    assert yarn_amplitude(1.0) == 1.0
    assert yarn_amplitude(16.0) == pytest.approx(0.1 * math.log(16) + 1)


def test_queries_grow_by_whole_original_contexts() -> None:
    scaling = RotaryScaling("yarn", 16.0, 4, fast=32.0, slow=1.0, query_growth=0.1)
    expected = [1.0] * 4 + [1 + 0.1 * math.log(2)] * 4 + [1 + 0.1 * math.log(3)]
    np.testing.assert_allclose(query_scales(scaling, 9), expected)
