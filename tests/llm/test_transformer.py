"""The transformer against Llama's equations written out in float64, head by head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from llm.models.gguf import GgufFile
from llm.models.linear import FloatLinear, Int8Linear
from llm.models.transformer import KVCache, Transformer
from tests.llm.tiny import HEAD, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, write_tiny_gguf


def norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def rotate(x, position):
    """RoFormer's rotation of pair (i, i + n/2) by position * theta^(-2i/n)."""
    out = x.copy()
    for i in range(HEAD // 2):
        angle = position * 10_000.0 ** (-2 * i / HEAD)
        a, b = x[i], x[i + HEAD // 2]
        out[i] = a * np.cos(angle) - b * np.sin(angle)
        out[i + HEAD // 2] = b * np.cos(angle) + a * np.sin(angle)
    return out


def reference(file: GgufFile, tokens: list[int]) -> np.ndarray:
    """Logits of every position, computed with full causal attention and no cache."""

    def w(name, *shape):
        return file.tensor(name, shape).astype(np.float64)

    vocab = file.config.vocab_size
    table = w("model.embed_tokens.weight", vocab, HIDDEN)
    x = table[tokens]
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        h = norm(x)
        q = (h @ w(p + "self_attn.q_proj.weight", HEADS * HEAD, HIDDEN).T).reshape(-1, HEADS, HEAD)
        k, v = (
            (h @ w(p + f"self_attn.{n}_proj.weight", KV_HEADS * HEAD, HIDDEN).T).reshape(
                -1, KV_HEADS, HEAD
            )
            for n in "kv"
        )
        attended = np.zeros((len(tokens), HEADS, HEAD))
        for t in range(len(tokens)):
            for head in range(HEADS):
                kv = head * KV_HEADS // HEADS
                query = rotate(q[t, head], t)
                scores = [query @ rotate(k[s, kv], s) / np.sqrt(HEAD) for s in range(t + 1)]
                weights = np.exp(scores - np.max(scores))
                attended[t, head] = (weights / weights.sum()) @ v[: t + 1, kv]
        x = (
            x
            + attended.reshape(len(tokens), -1)
            @ w(p + "self_attn.o_proj.weight", HIDDEN, HEADS * HEAD).T
        )
        h = norm(x)
        gate = h @ w(p + "mlp.gate_proj.weight", INNER, HIDDEN).T
        up = h @ w(p + "mlp.up_proj.weight", INNER, HIDDEN).T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w(p + "mlp.down_proj.weight", HIDDEN, INNER).T
    return norm(x) @ table.T


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    return GgufFile(write_tiny_gguf(tmp_path / "m.gguf"))


TOKENS = [7, 80, 200, 31, 80, 80, 5, 120, 9, 33, 61]


def test_equations(file: GgufFile) -> None:
    model = Transformer(file, FloatLinear)
    cache = KVCache(model.config, 64)
    visible = torch.arange(len(TOKENS)) + 1
    logits = model.logits(model.forward(torch.tensor(TOKENS), 0, visible, cache))
    np.testing.assert_allclose(logits.numpy(), reference(file, TOKENS), atol=2e-3, rtol=1e-3)


def test_eight_bits_change_little(file: GgufFile) -> None:
    model = Transformer(file)
    assert isinstance(model.embedding, Int8Linear)
    cache = KVCache(model.config, 64)
    visible = torch.arange(len(TOKENS)) + 1
    logits = model.logits(model.forward(torch.tensor(TOKENS), 0, visible, cache)).numpy()
    exact = reference(file, TOKENS)
    # Random weights three times larger than trained ones, so the rounding is amplified.
    assert np.linalg.norm(logits - exact) / np.linalg.norm(exact) < 0.1


def test_masks_see_each_other_and_clean_rows_do_not_see_them(file: GgufFile) -> None:
    model = Transformer(file)

    def hidden(tokens: list[int], visible: list[int]) -> torch.Tensor:
        cache = KVCache(model.config, 64)
        return model.forward(torch.tensor(tokens), 0, torch.tensor(visible), cache)

    alone = hidden([7, 80], [1, 2])
    block = hidden([7, 80, 3, 3], [1, 2, 4, 4])
    other = hidden([7, 80, 3, 9], [1, 2, 4, 4])
    assert torch.equal(alone, block[:2])
    assert not torch.equal(block[2], other[2]), "a mask sees what stands behind it in the block"
