"""Refinement of one sequence by drafting and verifying, as plain decisions.

The canvas holds clean tokens, the drafts behind them and how much of it is in the cache. It says
what the next forward must compute, and from the forward's best tokens decides what is committed
and what is drafted next. Knows nothing of tensors, text or time.

One forward carries [clean tokens not yet cached, drafts, masks]. Logits are shifted: the last
clean row predicts the first draft's token, and verifies it so; each draft row verifies the next;
mask j, which stands behind all drafts, predicts the token after its own place. Drafts that equal
the prediction are committed with one more token for free, so every forward commits at least one
(I-DLM, arXiv 2604.11035, section on introspective decoding; greedy case).

Where a small drafter comes with the model it drafts instead of masks: after each forward it reads
what the model made of the new clean text, and its masks stand behind that (`DraftStep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llm.models.spec import DiffusionSpec


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward computes.

    tokens stand at positions start, start + 1, …, and their keys and values overwrite the cache
    there. Row i sees the positions [0, visible[i]); a prefix length says every mask: causal text,
    a block that sees itself, a block with cached text behind it. wanted: the rows whose
    predictions are needed, in order; none in a step that only fills the cache.
    """

    start: int
    tokens: tuple[int, ...]
    visible: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftStep:
    """What a drafter computes after a forward.

    It reads the model's features of the positions start, start + 1, … together with the token
    behind each, `next_tokens`, and drafts num_drafts tokens behind the last of these, 0 = none.
    """

    start: int
    next_tokens: tuple[int, ...]
    num_drafts: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The token that a row predicts, its probability, and the row's entropy in nats."""

    token: int
    probability: float
    entropy: float = 0.0


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
        start = self.num_cached
        if len(todo) > max_rows:
            causal = range(start + 1, start + max_rows + 1)
            return Step(start, tuple(todo[:max_rows]), tuple(causal), ())
        clean = (*todo, *self.drafts)
        end = start + len(clean) + num_masks
        return Step(
            start,
            tokens=clean + (self.spec.mask_id,) * num_masks,
            visible=(*range(start + 1, start + len(clean) + 1), *(end,) * num_masks),
            wanted=tuple(range(len(todo) - 1, end - start)),
        )

    def apply(self, step: Step, predictions: Sequence[Prediction], *, gate: float) -> Outcome:
        """Take in a forward's predictions, one for each row that the step wanted.

        gate: drafts are carried on up to the first one less probable than this, 0 to 1.
        """
        assert len(predictions) == len(step.wanted), "one prediction for each row that asked"
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

    def draft_step(self, step: Step, num_drafts: int) -> DraftStep:
        """What a drafter has to read after `step`, which was just applied."""
        known = self.clean[step.start + 1 : self.num_cached + 1]
        # Behind an unfinished prompt or forced text comes what is known already.
        is_open = len(self.clean) == self.num_cached + 1
        return DraftStep(step.start, tuple(known), num_drafts if is_open else 0)

    def take_drafts(self, predictions: Sequence[Prediction], *, gate: float) -> None:
        """Carry a drafter's predictions into the next forward, up to the first below `gate`."""
        self.drafts = _confident_prefix(predictions, gate, self.spec.mask_id)


def _confident_prefix(
    predictions: Sequence[Prediction], gate: float, mask_id: int
) -> tuple[int, ...]:
    drafts: list[int] = []
    for prediction in predictions:
        if prediction.probability < gate or prediction.token == mask_id:
            break
        drafts.append(prediction.token)
    return tuple(drafts)
