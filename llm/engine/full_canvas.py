"""Full-attention diffusion of one sequence, as plain decisions (LLaDA-8B, Dream, DiffuCoder).

The canvas is the prompt and all masks of the answer, and every row sees all of it. Masks are
revealed block by block from the left (semi-autoregressive; LLaDA, arXiv 2502.09992). Nothing in
the cache is ever final, since each reveal changes what all rows see: EXACT computes everything
anew in each forward. PREFIX and DUAL keep keys and values of an earlier forward, which gives text
that is similar but not the same (Fast-dLLM, arXiv 2505.22618, section 3.2).

A prompt cannot be computed in parts: from the second layer on, every key depends on all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from llm.engine.block import Block
from llm.engine.canvas import Outcome, Prediction, Step
from llm.engine.policy import Policy
from llm.models.spec import Attention, DiffusionSpec


class Reuse(Enum):
    """Which keys and values of earlier forwards are used again within a block.

    EXACT: none. PREFIX: those before the block. DUAL: those before and behind it.
    """

    EXACT = "exact"
    PREFIX = "prefix"
    DUAL = "dual"


class FullCanvas:
    """One sequence being refined.

    prompt: at least one token. max_new_tokens: masks of the canvas, which the model sees from the
    start. refresh_interval: forwards until everything is computed anew, apart from the beginning
    of each block; 0 = only there. clean, drafts: as in Canvas. ended: end of text or of the canvas.
    """

    def __init__(
        self,
        spec: DiffusionSpec,
        prompt: Sequence[int],
        max_new_tokens: int,
        policy: Policy,
        *,
        reuse: Reuse = Reuse.EXACT,
        refresh_interval: int = 0,
    ) -> None:
        assert spec.attention is Attention.FULL, "this canvas is for full attention"
        assert prompt and max_new_tokens > 0, "a prompt, and at least one mask"
        self.spec = spec
        self.clean = list(prompt)
        # Nothing that was computed is ever final.
        self.num_cached = 0
        self.drafts: tuple[int, ...] = ()
        self.ended = False
        self.num_tokens = len(prompt) + max_new_tokens
        self._policy = policy
        self._reuse = reuse
        self._refresh_interval = refresh_interval
        self._begin_block()

    @property
    def block(self) -> tuple[int, tuple[int, ...]]:
        """Where the block that is being refined begins, and its tokens, mask_id where masked."""
        return self._block.start, tuple(self._block.tokens.tolist())

    @property
    def num_rows(self) -> int:
        """Rows of the next forward."""
        start, end = self._span()
        return end - start

    def next_step(self, *, max_rows: int, num_masks: int) -> Step:  # noqa: ARG002 - as all canvases
        """The next forward. Neither limit has a meaning here: rows that see each other cannot be
        computed apart, and the canvas says how many masks there are.
        """
        assert not self.ended, "nothing follows the end of the text"
        block = self._block
        start, end = self._span()
        canvas = [
            *self.clean[: block.start],
            *block.tokens.tolist(),
            *[self.spec.mask_id] * (self.num_tokens - block.end),
        ]
        wanted = block.start + np.flatnonzero(block.masked) - self.spec.logit_shift - start
        visible = (self.num_tokens,) * (end - start)
        return Step(start, tuple(canvas[start:end]), visible, tuple(wanted.tolist()))

    def apply(self, step: Step, predictions: Sequence[Prediction], *, gate: float) -> Outcome:
        """Take in a forward's predictions, one for each row that the step wanted.

        gate: drafts go up to the first mask whose best token is less probable than this, 0 to 1.
        """
        block = self._block
        asked = [step.start + row + self.spec.logit_shift - block.start for row in step.wanted]
        view = block.view(asked, predictions)
        block.reveal(view, self._policy)
        self._num_steps += 1
        num_final, ended = block.num_final(self.spec.eos_ids)
        committed = tuple(block.tokens[len(self.clean) - block.start : num_final].tolist())
        self.clean.extend(committed)
        done = num_final == len(block.tokens)
        self.ended = ended or (done and block.end == self.num_tokens)
        self.drafts = () if ended else block.guess(view, num_final, gate, self.spec.eos_ids)
        if done and not self.ended:
            self._begin_block()
        return Outcome(committed, 0, 0)

    def _begin_block(self) -> None:
        start = len(self.clean)
        end = min(start + self.spec.block_length, self.num_tokens)
        self._block = Block(start, end, self.spec.mask_id)
        self._num_steps = 0

    def _span(self) -> tuple[int, int]:
        """First and last + 1 of the positions that the next forward computes."""
        if self._refreshes():
            return 0, self.num_tokens
        # With shift 1 the row before the block predicts its first token.
        start = self._block.start - self.spec.logit_shift
        return start, self._block.end if self._reuse is Reuse.DUAL else self.num_tokens

    def _refreshes(self) -> bool:
        if self._reuse is Reuse.EXACT or self._num_steps == 0:
            return True
        return self._refresh_interval > 0 and self._num_steps % self._refresh_interval == 0
