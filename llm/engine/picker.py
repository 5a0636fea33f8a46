"""From a forward's logits to one prediction for each row, by the request's own sampling.

In: logits of the rows that verify and of the rows that draft. Out: predictions for the canvas. A
row that verifies draws its token with the random number of its place in the answer, so the text
does not depend on how drafts fell; a row that drafts proposes its best token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm.engine.canvas import Prediction
from llm.engine.constraint import Constraint
from llm.engine.sampling import (
    Probabilities,
    Purpose,
    adjusted_logits,
    distribution,
    draw,
    top_logprobs,
    uniform,
)
from llm.engine.verify import verify
from llm.models.spec import DiffusionSpec
from llm.types import SamplingParams, TokenLogprobs

NUM_TRIED = 16
"""Draws that may lead where the text cannot be closed in time; then it is closed."""


class Picker:
    """Picks for one request.

    params: with a seed. prompt: the tokens before the answer. logprobs: of the rows that verified
    in the last forward, where the request asked for them. constraint: what the grammar allows.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        spec: DiffusionSpec,
        constraint: Constraint | None = None,
    ) -> None:
        assert params.is_greedy or params.seed is not None, "the engine gives every request a seed"
        self._params = params
        self._prompt = np.array(prompt, np.int64)
        self._spec = spec
        self._constraint = constraint
        self._plain = params == SamplingParams(seed=params.seed)
        self.logprobs: list[TokenLogprobs] = []

    def reveal(
        self, logits: NDArray[np.float32], answer: Sequence[int], positions: Sequence[int]
    ) -> list[Prediction]:
        """A prediction for each mask, with the probability that its token has for the model.

        logits: [masks, vocab]. answer: tokens committed so far. positions: places in the answer
        that the rows predict, 0 = its first token.
        """
        if self._plain:
            return best(logits, self._spec.mask_id)
        predictions = []
        for row, position in zip(logits, positions, strict=True):
            chances = distribution(self._adjusted(row, answer), self._params)
            token = draw(chances, self._number(position, Purpose.TOKEN))
            (model,) = best(row[None], self._spec.mask_id)
            share = float(np.exp(row[token] - row[model.token]))
            predictions.append(Prediction(token, model.probability * share, model.entropy))
        return predictions

    def predictions(
        self, logits: NDArray[np.float32], answer: Sequence[int], drafts: Sequence[int]
    ) -> list[Prediction]:
        """One prediction for each row.

        logits: [1 + drafts + masks, vocab]: the last clean row, the drafts' rows, the masks'.
        answer: tokens committed so far.
        """
        if not len(logits):
            return []
        if self._plain and self._constraint is None:
            return best(logits, self._spec.mask_id)
        walker = None if self._constraint is None else self._constraint.copy()

        def target(row: int) -> Probabilities:
            if walker is not None and row:
                fits = walker.advance(drafts[row - 1])
                assert fits, "a draft that was accepted was allowed"
            before = [*answer, *drafts[:row]]
            adjusted = self._adjusted(logits[row], before)
            if walker is None:
                return distribution(adjusted, self._params)
            return self._constrained(adjusted, walker, len(before))

        verdict = verify(
            drafts, None, target, lambda row, purpose: self._number(len(answer) + row, purpose)
        )
        tokens = [*drafts[: verdict.num_accepted], verdict.next_token]
        self.logprobs = self._logprobs(logits, tokens)
        # What stands behind a rejected draft is never looked at.
        unread = Prediction(self._spec.mask_id, 0.0)
        verified = [Prediction(token, 1.0) for token in tokens]
        verified += [unread] * (1 + len(drafts) - len(tokens))
        return verified + best(logits[len(verified) :], self._spec.mask_id)

    def _constrained(
        self, adjusted: NDArray[np.float32], walker: Constraint, position: int
    ) -> Probabilities:
        """What is drawn from where the grammar stands: the draw leaves a way to close the text."""
        if (mask := walker.allowed()) is not None:
            adjusted[~mask] = -np.inf
        number = self._number(position, Purpose.TOKEN)
        for _ in range(NUM_TRIED):
            if adjusted.max() == -np.inf:
                break
            chances = distribution(adjusted, self._params)
            if walker.can_take(token := draw(chances, number)):
                return chances
            adjusted[token] = -np.inf
        certain = np.zeros(len(adjusted))
        certain[walker.way_out] = 1.0
        return certain

    def _adjusted(self, row: NDArray[np.float32], before: Sequence[int]) -> NDArray[np.float32]:
        return adjusted_logits(
            row,
            self._params,
            prompt=self._prompt,
            generated=before,
            mask_id=self._spec.mask_id,
            eos_ids=self._spec.eos_ids,
        )

    def _number(self, position: int, purpose: Purpose) -> float:
        return uniform(self._params.seed or 0, position, purpose)

    def _logprobs(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> list[TokenLogprobs]:
        num_best = self._params.num_logprobs
        if num_best is None:
            return []
        return [top_logprobs(logits[row], token, num_best) for row, token in enumerate(tokens)]


def best(logits: NDArray[np.float32], mask_id: int) -> list[Prediction]:
    """The best token of each row but the mask, its probability, and the row's entropy.

    Overwrites the mask's logits.
    """
    logits[:, mask_id] = -np.inf
    tokens = logits.argmax(axis=1)
    relative = logits - logits[np.arange(len(logits)), tokens][:, None]
    weights = np.exp(relative)
    total = weights.sum(axis=1)
    relative[:, mask_id] = 0
    entropies = np.log(total) - np.einsum("rv,rv->r", weights, relative) / total
    return [
        Prediction(int(token), float(1 / mass), float(entropy))
        for token, mass, entropy in zip(tokens, total, entropies, strict=True)
    ]
