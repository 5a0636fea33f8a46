"""Smoothing changes nothing in exact arithmetic and helps where activations have outliers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from llm.models.checkpoint import Checkpoint
from llm.models.gguf import GgufFile
from llm.models.linear import FloatLinear, Int8Linear
from llm.models.smoothing import SmoothedCheckpoint, find_factors
from llm.models.transformer import KVCache, Transformer
from tests.llm.tiny import write_tiny_gguf

TEXTS = [[7, 80, 200, 31, 80, 5], [120, 9, 33, 61, 90, 91, 92]]


class WithOutliers:
    """A checkpoint in which a few channels are large, as they are in trained models."""

    drafter = None

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer

    def tensor(self, name, shape):
        weight = self._checkpoint.tensor(name, shape)
        if name.endswith("layernorm.weight"):
            weight[::9] *= 30
        if name.endswith(("q_proj.weight", "k_proj.weight", "gate_proj.weight", "up_proj.weight")):
            weight[:, ::9] /= 30
        return weight


def logits(checkpoint: Checkpoint, linear) -> np.ndarray:
    model = Transformer(checkpoint, linear)
    cache = KVCache(model.config, 64)
    ids = torch.tensor([7, 80, 90, 31, 92, 80, 5])
    return model.logits(model.forward(ids, 0, torch.arange(7) + 1, cache)).numpy()


def test_exact_arithmetic_is_unchanged(tmp_path: Path) -> None:
    file = WithOutliers(GgufFile(write_tiny_gguf(tmp_path / "m.gguf")))
    smoothed = SmoothedCheckpoint(file, find_factors(file, TEXTS))
    plain = logits(file, FloatLinear)
    np.testing.assert_allclose(logits(smoothed, FloatLinear), plain, atol=2e-3, rtol=2e-3)


def test_eight_bits_lose_less(tmp_path: Path) -> None:
    file = WithOutliers(GgufFile(write_tiny_gguf(tmp_path / "m.gguf")))
    smoothed = SmoothedCheckpoint(file, find_factors(file, TEXTS))
    exact = logits(file, FloatLinear)

    def error(checkpoint: Checkpoint) -> float:
        return float(np.linalg.norm(logits(checkpoint, Int8Linear) - exact))

    assert error(smoothed) < 0.6 * error(file)


def test_every_matrix_gets_its_factors(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf"))
    for factors in find_factors(file, TEXTS):
        sizes = [len(f) for f in (factors.attention, factors.output, factors.mlp, factors.down)]
        assert sizes == [64, 32, 64, 96]
        assert all((f > 0).all() for f in (factors.attention, factors.output))
