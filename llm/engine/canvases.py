"""Which canvas refines a sequence: the one that the model's spec asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llm.engine.block_canvas import BlockCanvas
from llm.engine.canvas import Outcome, Prediction, Step
from llm.engine.decoding import Decoding
from llm.engine.full_canvas import FullCanvas
from llm.engine.mask_drafts import MaskDrafts
from llm.models.spec import Attention, DiffusionSpec


class AnyCanvas(Protocol):
    """One sequence being refined, whatever the family.

    clean: prompt and committed tokens. drafts: guesses for the places behind. num_cached: clean
    tokens whose keys and values are final and need not be computed again.
    """

    clean: list[int]
    drafts: tuple[int, ...]
    num_cached: int

    def next_step(self, *, max_rows: int, num_masks: int) -> Step:
        """What the next forward must compute."""

    def apply(self, step: Step, predictions: Sequence[Prediction], *, gate: float) -> Outcome:
        """Take in a forward's predictions, one for each row that the step wanted."""


def open_canvas(
    spec: DiffusionSpec,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    num_cached: int,
    decoding: Decoding,
) -> AnyCanvas:
    """A canvas behind `prompt` for an answer of at most max_new_tokens.

    num_cached: tokens of the prompt that the slot holds already. decoding: how masks are revealed;
    without meaning where drafts are verified; second thoughts are for blocks, reuse is for full
    attention.
    """
    match spec.attention:
        case Attention.CAUSAL_VERIFIED:
            return MaskDrafts(spec, list(prompt), num_cached)
        case Attention.BLOCK_CAUSAL:
            return BlockCanvas(
                spec,
                prompt,
                decoding.policy,
                editing=decoding.editing,
                guards=decoding.guards,
                num_cached=num_cached,
            )
        case Attention.FULL:
            return FullCanvas(
                spec,
                prompt,
                max_new_tokens,
                decoding.policy,
                reuse=decoding.reuse,
                refresh_interval=decoding.refresh_interval,
            )
