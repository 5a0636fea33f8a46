"""Forwards in torch on the CPU.

In: steps of the canvas with their caches. Out: the best token of each asked row and its
probability. Knows nothing of requests, drafts or text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llm.engine.canvas import Prediction, Step
from llm.models.spec import DiffusionSpec
from llm.models.transformer import KVCache, Transformer


class TorchRunner:
    """Runs a transformer for the engine.

    num_threads: compute threads, 0 = as many as torch takes by itself.
    """

    def __init__(self, model: Transformer, spec: DiffusionSpec, num_threads: int = 0) -> None:
        self._model = model
        self._spec = spec
        self._num_threads = num_threads

    @property
    def context_length(self) -> int:
        """Positions that a sequence may have at most."""
        return self._model.config.context_length

    def open_cache(self, capacity: int) -> KVCache:
        """A cache for one sequence of at most `capacity` positions."""
        return KVCache(self._model.config, capacity)

    @torch.inference_mode()
    def forward(self, steps: Sequence[tuple[KVCache, Step]]) -> list[list[Prediction]]:
        """One forward for each (cache, step); returns the predictions that each step asks for."""
        if self._num_threads:
            # Torch keeps this per thread, so it is set where the forwards run.
            torch.set_num_threads(self._num_threads)
        return [self._run(cache, step) for cache, step in steps]

    def _run(self, cache: KVCache, step: Step) -> list[Prediction]:
        tokens = torch.tensor(step.tokens)
        visible = step.start + 1 + torch.arange(len(tokens))
        visible[step.num_causal :] = step.start + len(tokens)
        hidden = self._model.forward(tokens, step.start, visible, cache)
        if not step.num_predicted:
            return []
        logits = self._model.logits(hidden[-step.num_predicted :])
        return _reveal(logits, self._spec.mask_id)


def _reveal(logits: Tensor, mask_id: int) -> list[Prediction]:
    """The best token of each row but the mask, and its probability. logits: [rows, vocab]."""
    logits[:, mask_id] = float("-inf")
    best, tokens = logits.max(dim=1)
    probabilities = (best - logits.logsumexp(dim=1)).exp()
    return [
        Prediction(token, probability)
        for token, probability in zip(tokens.tolist(), probabilities.tolist(), strict=True)
    ]
