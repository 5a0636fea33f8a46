"""Exact block diffusion of one sequence, as decisions (SDAR, LLaDA2, Fast-dLLM v2, BD3-LM).

A row sees its own block and all before it. The prompt's whole blocks are computed once, a
staircase; then masks fill one block, and forward by forward a policy reveals some, until none is
left. A last forward over the clean block leaves keys and values as if all had been computed anew;
where the next block's masks fit beside it, both are one forward. Knows nothing of tensors, text or
time.

With logit shift 1 a position is predicted by the row before it, so the first token of a block
comes from the clean forward of the block before (Fast-dLLM v2, arXiv 2509.26328).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from llm.engine.block import Block
from llm.engine.canvas import Outcome, Prediction, Step
from llm.engine.editing import EditMemory, EditRule, choose_edits, low_confidence_spans
from llm.engine.guards import Defect, GuardRule, inspect, within_budget
from llm.engine.policy import BlockView, FixedSteps, Flags, Policy
from llm.models.spec import Attention, DiffusionSpec

CONTEXT_TOKENS = 256
"""Tokens before a block in which a guard looks for the loop that the block may go on with."""

NOTHING = Outcome((), 0, 0)


class BlockCanvas:
    """One sequence being refined.

    clean: prompt and committed tokens. num_cached: how many of them have final keys and values; a
    caller that restores a cache says so here. drafts: guesses for the places behind. ended: an end
    of text is committed, and no forward is left to do. num_edited, num_remasked, defects: what
    second thoughts did.

    Without editing and guards, what is revealed with no mask before it is committed at once; with
    them, a block is committed whole, after a forward that changed nothing.
    """

    def __init__(
        self,
        spec: DiffusionSpec,
        clean: Sequence[int],
        policy: Policy,
        *,
        editing: EditRule | None = None,
        guards: GuardRule | None = None,
        num_cached: int = 0,
    ) -> None:
        assert spec.attention is Attention.BLOCK_CAUSAL, "this canvas is for block diffusion"
        assert clean, "a prompt has at least one token"
        self.spec = spec
        self.clean = list(clean)
        self.drafts: tuple[int, ...] = ()
        self.ended = False
        self.num_edited = 0
        self.num_remasked = 0
        self.defects: Counter[Defect] = Counter()
        self._policy = policy
        self._editing = editing
        self._guards = guards
        self._phase = len(clean) % spec.block_length if spec.blocks_from_prompt_end else 0
        self._begin_block(self._block_start(len(clean)))
        # Where a block's first token comes from the row before it, that row is always computed.
        self.num_cached = max(0, min(num_cached, self._block.start - spec.logit_shift))

    @property
    def block(self) -> tuple[int, tuple[int, ...]]:
        """Where the block that is being refined begins, and its tokens, mask_id where masked."""
        return self._block.start, tuple(self._block.tokens.tolist())

    def next_step(self, *, max_rows: int, num_masks: int) -> Step:  # noqa: ARG002 - as all canvases
        """The next forward: at most max_rows rows, or one block where that is more.

        num_masks has no meaning here: the model's block length says how many masks there are.
        """
        assert not self.ended, "nothing follows the end of the text"
        block, shift = self._block, self.spec.logit_shift
        owed = block.start - self.num_cached
        first_unknown = bool(shift and block.masked[0])
        if owed and (first_unknown or owed + len(block.tokens) > max_rows):
            end = self._chunk_end(max_rows)
            wanted = (owed - 1,) if first_unknown and end == block.start else ()
            return self._step(self.clean[self.num_cached : end], wanted)
        tokens = [*self.clean[self.num_cached : block.start], *block.tokens.tolist()]
        return self._step(tokens, tuple(owed + at - shift for at in self._asked()))

    def apply(self, step: Step, predictions: Sequence[Prediction], *, gate: float) -> Outcome:
        """Take in a forward's predictions, one for each row that the step wanted.

        gate: drafts go up to the first mask whose best token is less probable than this, 0 to 1.
        """
        assert len(predictions) == len(step.wanted), "one prediction for each row that asked"
        assert step.start == self.num_cached, "steps are applied in the order they were made"
        block = self._block
        self.num_cached = min(block.start, step.start + len(step.tokens))
        in_block = step.start + len(step.tokens) > block.start
        if not predictions and not in_block:
            return NOTHING
        shift = self.spec.logit_shift
        asked = [step.start + row + shift - block.start for row in step.wanted]
        view = block.view(asked, predictions)
        if in_block:
            settled = self._refine(view, asked)
        else:
            # The clean forward's token is as good as any: second thoughts leave it alone.
            block.put(view, view.masked)
            block.forward[0] = -1
            block.restart()
            settled = False
        committed = self._settle(view, settled)
        if not self.ended and self._block is block:
            first = len(self.clean) - block.start
            self.drafts = block.guess(view, first, gate, self.spec.eos_ids)
        return Outcome(committed, 0, 0)

    @property
    def _reviews(self) -> bool:
        return self._editing is not None or self._guards is not None

    def _step(self, tokens: Sequence[int], wanted: tuple[int, ...]) -> Step:
        positions = range(self.num_cached, self.num_cached + len(tokens))
        visible = tuple(self._block_end(position) for position in positions)
        return Step(self.num_cached, tuple(tokens), visible, wanted)

    def _block_start(self, position: int) -> int:
        into = (position - self._phase) % self.spec.block_length
        return max(0, position - into)

    def _block_end(self, position: int) -> int:
        into = (position - self._phase) % self.spec.block_length
        return position - into + self.spec.block_length

    def _chunk_end(self, max_rows: int) -> int:
        """The end of as many whole clean blocks as max_rows hold, at least one."""
        end = self._block_end(self.num_cached)
        return min(self._block.start, max(end, self._block_start(self.num_cached + max_rows)))

    def _begin_block(self, start: int) -> None:
        end, tail = self._block_end(start), self.clean[start:]
        self._block = Block(start, end, self.spec.mask_id, tail)
        self._edits = EditMemory()
        self._guard_budget = self._guards.budget if self._guards else 0
        self._remasked = False

    def _asked(self) -> list[int]:
        """The positions in the block that the next forward must predict."""
        block = self._block
        size = self.spec.sub_block_length or len(block.tokens)
        masked = np.flatnonzero(block.masked)
        window = masked[masked // size == masked[0] // size] if len(masked) else masked
        if not self._reviews:
            return window.tolist()
        revealed = np.flatnonzero(block.ours & ~block.masked)
        first = self.spec.logit_shift
        return sorted(at for at in (*window.tolist(), *revealed.tolist()) if at >= first)

    def _refine(self, view: BlockView, asked: Sequence[int]) -> bool:
        """Reveal and edit. Returns whether the block was full and stays as it was."""
        block = self._block
        was_full = self._full()
        looked_at = np.isin(np.arange(len(block.tokens)), asked)
        editable = ~block.masked & looked_at
        if not was_full:
            block.reveal(view, FixedSteps(len(block.tokens)) if self._remasked else self._policy)
        if self._editing is None:
            return was_full
        edits, self._edits = choose_edits(block.tokens, editable, view, self._editing, self._edits)
        block.put(view, edits)
        self.num_edited += int(edits.sum())
        return was_full and not edits.any()

    def _full(self) -> bool:
        """No mask is left before the block's end, or the end of the text."""
        num_final, ended = self._block.num_final(self.spec.eos_ids)
        return ended or num_final == len(self._block.tokens)

    def _settle(self, view: BlockView, settled: bool) -> tuple[int, ...]:
        """Commit what is final now, and go on to the next block where this one is done."""
        block = self._block
        num_final, ended = block.num_final(self.spec.eos_ids)
        done = self._full()
        if self._reviews and (not done or not settled or self._doubts(view, num_final)):
            return ()
        committed = tuple(block.tokens[len(self.clean) - block.start : num_final].tolist())
        self.clean.extend(committed)
        self.ended = ended
        if done and not ended:
            self.drafts = ()
            # After a forward over the clean block that changed nothing no other is owed.
            if settled or not self.spec.commit_forward:
                self.num_cached = block.end - self.spec.logit_shift
            self._begin_block(block.end)
        return committed

    def _doubts(self, view: BlockView, num_final: int) -> bool:
        """Mask again what should be decoded anew. Returns whether there is any."""
        again = self._shaky(num_final) | self._defective(view, num_final)
        if again.any():
            self.num_remasked += int(again.sum())
            self._remasked = True
            self._block.mask_again(again)
        return bool(again.any())

    def _shaky(self, num_final: int) -> Flags:
        """What was revealed with doubt; only before anything was masked again."""
        block = self._block
        if self._editing is None or self._remasked:
            return np.zeros(len(block.tokens), np.bool_)
        at = np.arange(len(block.tokens))
        ours = block.ours & (at >= self.spec.logit_shift) & (at < num_final)
        return low_confidence_spans(block.confidence, ours, self._editing.remask_below)

    def _defective(self, view: BlockView, num_final: int) -> Flags:
        block = self._block
        again = np.zeros(len(block.tokens), np.bool_)
        if self._guards is None or not self._guard_budget:
            return again
        context = self.clean[max(0, block.start - CONTEXT_TOKENS) : block.start]
        found = inspect(
            block.tokens[:num_final], context, block.forward[:num_final], view, self._guards
        )
        for finding in within_budget(found, self._guard_budget):
            self.defects[finding.defect] += 1
            again[list(finding.positions)] = True
        self._guard_budget -= int(again.sum())
        return again
