"""The backbone of every family written out in float64: head by head, expert by expert.

Attention is a full matrix of who sees whom, and there is no cache. Weights go by neutral names:
"embedding", "0.q", "1.expert3.gate", ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]


@dataclass(frozen=True)
class Shape:
    """Every size differs from every other, so that a swapped pair cannot go unnoticed."""

    layers: int = 2
    hidden: int = 48
    inner: int = 40
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    theta: float = 1_000_000.0
    epsilon: float = 1e-6
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    rotated: int = 16
    yarn: float = 0.0
    turns: tuple[float, float] = (1.0, 0.05)
    original: int = 8
    growth: float = 0.0
    experts: int = 0
    chosen: int = 2
    expert_inner: int = 24
    shared_inner: int = 0
    dense_layers: int = 0
    sigmoid: bool = False
    groups: int = 1
    best_groups: int = 1
    renormalise: bool = False
    scale: float = 1.0


def slow_logits(weights: Tensors, shape: Shape, tokens: list[int], sees: Array) -> Array:
    """Logits [rows, vocab] in float64. sees: bool [rows, rows], row i sees column j."""
    x = weights["embedding"][tokens]
    for layer in range(shape.layers):
        w = {n.partition(".")[2]: v for n, v in weights.items() if n.startswith(f"{layer}.")}
        x = x + attention(w, shape, norm(x, w["norm1"], shape.epsilon), sees)
        h = norm(x, w["norm2"], shape.epsilon)
        x = x + np.stack([feed_forward(w, shape, row) for row in h])
    head = weights["embedding" if shape.tied else "head"]
    return norm(x, weights["norm"], shape.epsilon) @ head.T


def norm(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def speed(pair: int, shape: Shape) -> float:
    """Radians by which a pair turns from one position to the next; YaRN's where it is asked for."""
    plain = float(shape.theta ** (-2 * pair / shape.rotated))
    if not shape.yarn:
        return plain

    def place(turns: float) -> float:
        log = np.log(shape.original / (turns * 2 * np.pi))
        return float(shape.rotated * log / (2 * np.log(shape.theta)))

    low, high = np.floor(place(shape.turns[0])), np.ceil(place(shape.turns[1]))
    assert 0 <= low < high < shape.rotated // 2, "pairs of all three kinds"
    share = min(1.0, max(0.0, (pair - low) / (high - low)))
    return plain * (1 - share) + plain / shape.yarn * share


def rotate(x: Array, position: int, shape: Shape) -> Array:
    """RoFormer's rotation of pair (i, i + n/2) of the first n values."""
    out = x.copy()
    half = shape.rotated // 2
    for i in range(half):
        angle = position * speed(i, shape)
        out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
        out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
    return out


def attention(w: Tensors, shape: Shape, h: Array, sees: Array) -> Array:
    size = shape.head
    projected = {n: h @ w[n].T + w.get(f"{n}.bias", 0.0) for n in "qkv"}

    def one(name: str, row: int, head: int) -> Array:
        value = projected[name][row, head * size : (head + 1) * size]
        if name == "v":
            return value
        if shape.qk_norm:
            value = norm(value, w[f"{name}norm"], shape.epsilon)
        return rotate(value, row, shape)

    rows = len(h)
    out = np.zeros((rows, shape.heads * size))
    for head in range(shape.heads):
        kv = head // (shape.heads // shape.kv_heads)
        keys = [one("k", row, kv) for row in range(rows)]
        values = [one("v", row, kv) for row in range(rows)]
        for row in range(rows):
            query = one("q", row, head) * (1 + shape.growth * np.log(1 + row // shape.original))
            seen = np.flatnonzero(sees[row])
            scores = np.array([query @ keys[s] / np.sqrt(size) for s in seen])
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            for share, s in zip(shares, seen, strict=True):
                out[row, head * size : (head + 1) * size] += share * values[s]
    return out @ w["o"].T


def swiglu(w: Tensors, at: str, row: Array) -> Array:
    gate = w[f"{at}gate"] @ row
    return w[f"{at}down"] @ (gate / (1 + np.exp(-gate)) * (w[f"{at}up"] @ row))


def feed_forward(w: Tensors, shape: Shape, row: Array) -> Array:
    if "router" not in w:
        return swiglu(w, "", row)
    logits = w["router"] @ row
    scores = 1 / (1 + np.exp(-logits)) if shape.sigmoid else np.exp(logits) / np.exp(logits).sum()
    wanted = scores + w.get("router.bias", 0.0)
    size = shape.experts // shape.groups
    worth = [sum(sorted(wanted[g * size : (g + 1) * size])[-2:]) for g in range(shape.groups)]
    open_groups = sorted(range(shape.groups), key=lambda g: -worth[g])[: shape.best_groups]
    candidates = [e for e in range(shape.experts) if e // size in open_groups]
    chosen = sorted(candidates, key=lambda e: -wanted[e])[: shape.chosen]
    total = sum(scores[e] for e in chosen) if shape.renormalise else 1.0
    out = sum(scores[e] / total * shape.scale * swiglu(w, f"expert{e}.", row) for e in chosen)
    return out + swiglu(w, "shared.", row) if shape.shared_inner else out
