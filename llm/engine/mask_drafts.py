"""Verified drafting with masks that stand as their model was trained, as plain decisions.

I-DLM (arXiv 2604.11035): masks are as causal as text. Nemotron-Labs-Diffusion (arXiv 2607.05722):
a mask predicts its own place, and not the one behind it as a clean token does. There the published
loop drafts and verifies in turn; here each forward does both, so the last clean token is causal
where theirs sees the masks: drafts may differ, the text that they are verified by does not.
"""

from __future__ import annotations

from dataclasses import replace

from llm.engine.canvas import Canvas, Step
from llm.models.spec import DiffusionSpec


def num_spare_masks(spec: DiffusionSpec) -> int:
    """Masks beside those that draft: one that predicts what the last clean row predicts too."""
    return 1 - spec.mask_shift


class MaskDrafts(Canvas):
    """A canvas whose masks are laid out as its spec says."""

    def next_step(self, *, max_rows: int, num_masks: int) -> Step:
        """The next forward, of at most max_rows clean rows and num_masks masks that draft."""
        num_spare = num_spare_masks(self.spec) if num_masks else 0
        step = super().next_step(max_rows=max_rows, num_masks=num_masks + num_spare)
        if not step.wanted or not num_masks:
            return step
        first = len(step.tokens) - num_masks - num_spare
        visible = step.visible
        if self.spec.masks_causal:
            visible = tuple(range(step.start + 1, step.start + len(step.tokens) + 1))
        spare = range(first, first + num_spare)
        wanted = tuple(row for row in step.wanted if row not in spare)
        return replace(step, visible=visible, wanted=wanted)
