"""A tiny random transformer in float64 with real attention, for comparing ways to decode.

It runs in three ways that share only the weights: over whole texts with an attention mask, over
rows with an array as cache as a runner does, and over rows with a dictionary as cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llm.engine.canvas import Prediction, Step

Array = NDArray[np.float64]
Memory = list[dict[int, tuple[Array, Array]]]
"""For each layer, the key and value at each position."""

MASK, EOS, VOCAB, SIZE, LAYERS, POSITIONS = 0, 1, 12, 16, 2, 96


class ToyTransformer:
    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed).standard_normal
        self.token = draw((VOCAB, SIZE))
        self.position = draw((POSITIONS, SIZE))
        self.weights = [
            {
                name: draw((SIZE, SIZE)) / np.sqrt(SIZE)
                for name in ("q", "k", "v", "o", "up", "down")
            }
            for _ in range(LAYERS)
        ]
        self.head = draw((SIZE, VOCAB)) / np.sqrt(SIZE) * 2.5

    def logits(self, tokens: list[int], mask: NDArray[np.bool_]) -> Array:
        """mask: bool [n, n], true where a row sees a column. Returns [n, vocab]."""
        return self.whole(tokens, mask)[0]

    def whole(self, tokens: list[int], mask: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Logits [n, vocab], and keys and values [layers, 2, n, size]."""
        x = self.token[tokens] + self.position[: len(tokens)]
        kept = []
        for w in self.weights:
            h = norm(x)
            keys, values = h @ w["k"], h @ w["v"]
            kept.append((keys, values))
            scores = np.where(mask, (h @ w["q"]) @ keys.T / np.sqrt(SIZE), -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            x = x + weights / weights.sum(axis=1, keepdims=True) @ values @ w["o"]
            x = x + np.tanh(norm(x) @ w["up"]) @ w["down"]
        return norm(x) @ self.head, np.array(kept)

    def among(self, tokens: list[int], positions: list[int], past: Memory) -> tuple[Array, Memory]:
        """Rows that see each other and all that is in `past`, their own places in it replaced."""
        x = self.token[tokens] + self.position[positions]
        present: Memory = []
        for w, before in zip(self.weights, past, strict=True):
            h = norm(x)
            now = {at: (row @ w["k"], row @ w["v"]) for at, row in zip(positions, h, strict=True)}
            present.append({**before, **now})
            keys = np.array([key for key, _ in present[-1].values()])
            values = np.array([value for _, value in present[-1].values()])
            x = x + np.array([attend(row @ w["q"], keys, values) for row in h]) @ w["o"]
            x = x + np.tanh(norm(x) @ w["up"]) @ w["down"]
        return norm(x) @ self.head, present


class ToyRunner:
    """Runs steps over one cache. What was never written is NaN, and so is what looks at it."""

    def __init__(self, model: ToyTransformer) -> None:
        self.model = model
        self.cache = np.full((LAYERS, 2, POSITIONS, SIZE), np.nan)
        self.num_forwards = 0

    def __call__(self, step: Step) -> list[Prediction]:
        self.num_forwards += 1
        model, end = self.model, step.start + len(step.tokens)
        x = model.token[list(step.tokens)] + model.position[step.start : end]
        for w, (keys, values) in zip(model.weights, self.cache, strict=True):
            h = norm(x)
            keys[step.start : end] = h @ w["k"]
            values[step.start : end] = h @ w["v"]
            attended = [
                attend(row @ w["q"], keys[:seen], values[:seen])
                for row, seen in zip(h, step.visible, strict=True)
            ]
            x = x + np.array(attended) @ w["o"]
            x = x + np.tanh(norm(x) @ w["up"]) @ w["down"]
        assert not np.isnan(x).any(), "a row saw a place in the cache that was never written"
        return [prediction(row) for row in norm(x)[list(step.wanted)] @ model.head]


def prediction(logits: Array) -> Prediction:
    """The best token but the mask, its probability and the entropy."""
    allowed = np.delete(logits, MASK)
    p = np.exp(allowed - allowed.max())
    p /= p.sum()
    best = int(p.argmax())
    return Prediction(best + (best >= MASK), float(p[best]), float(-(p * np.log(p)).sum()))


def attend(query: Array, keys: Array, values: Array) -> Array:
    scores = keys @ query / np.sqrt(SIZE)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def norm(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
