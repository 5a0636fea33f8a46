"""Refinement of one sequence by drafting and verifying, as plain decisions.

The canvas holds clean tokens, the drafts behind them and how much of it is in the cache. It says
what the next forward must compute, and from the forward's best tokens decides what is committed
and what is drafted next. Knows nothing of tensors, text or time.

One forward carries [clean tokens not yet cached, drafts, masks]. Logits are shifted: the last
clean row predicts the first draft's token, and verifies it so; each draft row verifies the next;
mask j, which stands behind all drafts, predicts the token after its own place. Drafts that equal
the prediction are committed with one more token for free, so every forward commits at least one
(I-DLM, arXiv 2604.11035, section on introspective decoding; greedy case).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llm.models.spec import DiffusionSpec


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward computes.

    tokens stand at positions start, start + 1, …; the first num_causal see only what is before
    them and themselves, the rest (masks) see all rows. The last num_predicted rows need
    predictions; 0 in a step that only fills the cache.
    """

    start: int
    tokens: tuple[int, ...]
    num_causal: int
    num_predicted: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best token of one row and its probability."""

    token: int
    probability: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a forward decided: tokens committed now, and how many drafts were tried and kept."""

    committed: tuple[int, ...]
    num_drafted: int
    num_accepted: int


@dataclass(slots=True)
class Canvas:
    """One sequence being refined.

    clean: prompt and committed tokens. num_cached: how many of them have final keys and values.
    drafts: guesses for the places behind, to be verified by the next forward.
    """

    spec: DiffusionSpec
    clean: list[int]
    num_cached: int = 0
    drafts: tuple[int, ...] = field(default=())

    def next_step(self, *, max_rows: int, num_masks: int) -> Step:
        """The next forward, of at most max_rows clean rows and num_masks masks behind them."""
        todo = self.clean[self.num_cached :]
        assert todo, "the last clean token is always computed anew"
        if len(todo) > max_rows:
            return Step(self.num_cached, tuple(todo[:max_rows]), max_rows, 0)
        rows = (*todo, *self.drafts)
        return Step(
            start=self.num_cached,
            tokens=rows + (self.spec.mask_id,) * num_masks,
            num_causal=len(rows),
            num_predicted=1 + len(self.drafts) + num_masks,
        )

    def apply(self, step: Step, predictions: Sequence[Prediction], *, gate: float) -> Outcome:
        """Take in a forward's predictions, one for each of the step's last num_predicted rows.

        gate: drafts are carried on up to the first one less probable than this, 0 to 1.
        """
        assert len(predictions) == step.num_predicted, "one prediction for each row that asked"
        if not predictions:
            self.num_cached += len(step.tokens)
            return Outcome((), 0, 0)
        drafted = self.drafts
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == predictions[accepted].token:
            accepted += 1
        committed = (*drafted[:accepted], predictions[accepted].token)
        # Rows of accepted drafts were causal on clean text: their keys and values are final.
        self.num_cached = len(self.clean) + accepted
        self.clean.extend(committed)
        behind = predictions[len(drafted) + 1 :] if accepted == len(drafted) else ()
        self.drafts = _confident_prefix(behind, gate, self.spec.mask_id)
        return Outcome(committed, len(drafted), accepted)


def _confident_prefix(
    predictions: Sequence[Prediction], gate: float, mask_id: int
) -> tuple[int, ...]:
    drafts: list[int] = []
    for prediction in predictions:
        if prediction.probability < gate or prediction.token == mask_id:
            break
        drafts.append(prediction.token)
    return tuple(drafts)
