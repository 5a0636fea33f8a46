"""A request in progress: its canvas, its text and its counts. For the engine's worker only.

Times are seconds of the engine's clock, handed in.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llm.engine.block_schedule import block_length
from llm.engine.canvas import Canvas, DraftStep, Outcome, Prediction, Step
from llm.engine.canvases import open_canvas
from llm.engine.constraint import Constraint
from llm.engine.decoding import Decoding
from llm.engine.draft_habit import DraftHabit
from llm.engine.full_canvas import FullCanvas
from llm.engine.generation import Generation
from llm.engine.lookup import copied
from llm.engine.picker import Picker
from llm.engine.text_stream import TextStream
from llm.engine.tool_stream import ToolStream
from llm.models.spec import Attention, DiffusionSpec
from llm.tokenizer import Tokenizer
from llm.types import (
    Committed,
    Event,
    Finished,
    FinishReason,
    Request,
    TokenLogprobs,
    ToolGrammar,
    Usage,
)

DRAFT_GATE = 0.4
"""Drafts less probable than this are not carried into the next forward."""


DRAFTER_GATE = 0.1
"""The same for a drafter's: it costs less, and rows more in a forward cost next to nothing."""

SURE = 0.5
"""A first draft as probable as this is not replaced by one that is copied."""


class Running:
    """One generation between admission and its end.

    max_new: tokens that it may produce, at most. decoding: see `open_canvas`. habit: whether
    drafting pays, shared by all. constraint: what the request's grammar allows.
    admitted: when it was admitted. slot: where its cache is.
    """

    def __init__(
        self,
        generation: Generation,
        request: Request,
        prompt: Sequence[int],
        *,
        spec: DiffusionSpec,
        tokenizer: Tokenizer,
        max_new: int,
        decoding: Decoding,
        habit: DraftHabit,
        admitted: float,
        constraint: Constraint | None = None,
    ) -> None:
        self.generation = generation
        self.request = request
        self.slot = -1
        self._prompt = prompt
        self._decoding = decoding
        self._num_prompt = len(prompt)
        self._num_cached = 0
        self._max_new = max_new
        self._habit = habit
        self._admitted = admitted
        self._spec = spec
        self.take_prefix(0)
        self._text = TextStream(tokenizer, request.stop)
        self._constraint = constraint
        calls = request.grammar is None or isinstance(request.grammar, ToolGrammar)
        self._tools = ToolStream() if request.tools and calls else None
        self._picker = Picker(request.sampling, prompt, spec, constraint)
        self._num_new = self._num_forwards = self._num_drafted = self._num_accepted = 0
        self._accepted_counts: Counter[int] = Counter()
        self._first_commit_ms: float | None = None
        self._has_drafted = False

    @property
    def num_todo(self) -> int:
        """Clean rows to compute before it can predict; 1 where only masks are to be computed.

        With full attention the rows of the next forward, clean or not.
        """
        if isinstance(self.canvas, FullCanvas):
            return self.canvas.num_rows
        return max(1, len(self.canvas.clean) - self.canvas.num_cached)

    @property
    def num_tokens_at_most(self) -> int:
        """Tokens of the prompt and of the longest answer."""
        return self._num_prompt + self._max_new

    @property
    def answer(self) -> list[int]:
        """Tokens committed so far."""
        return self.canvas.clean[self._num_prompt :]

    def is_overdue(self, now: float) -> bool:
        """Whether its deadline has passed."""
        deadline_ms = self.request.deadline_ms
        return deadline_ms is not None and self._elapsed_ms(now) > deadline_ms

    def take_prefix(self, num_tokens: int) -> None:
        """The slot holds the first num_tokens of the prompt already; said before the first step."""
        self.canvas = open_canvas(
            self._spec,
            self._prompt,
            max_new_tokens=self._max_new,
            num_cached=num_tokens,
            decoding=self._decoding,
        )
        self._num_cached = self.canvas.num_cached

    def next_step(self, max_rows: int, max_masks: int) -> Step:
        """The next forward, of at most max_rows clean rows and max_masks masks."""
        block = block_length(
            num_committed=self._num_new,
            buffered_ms=self.generation.buffered_ms,
            largest=max_masks + 1,
        )
        masks = self._habit.num_masks(block - 1) if self.num_todo <= max_rows else 0
        return self.canvas.next_step(max_rows=max_rows, num_masks=masks)

    def apply(self, step: Step, logits: NDArray[np.float32], now: float) -> FinishReason | None:
        """Take in a forward and tell the reader. Returns why it is over, if it is."""
        outcome = self.canvas.apply(step, self._predictions(step, logits), gate=DRAFT_GATE)
        if step.wanted:
            self._num_forwards += 1
            self._accepted_counts[outcome.num_accepted] += 1
            if self._has_drafted:
                self._habit.note(outcome.num_accepted)
            self._has_drafted = step.tokens[-1] == self._spec.mask_id
        self._num_drafted += outcome.num_drafted
        if outcome.committed:
            return self._commit(outcome, now)
        self._tell(self._text.commit((), self.canvas.drafts))
        return None

    def draft_step(self, step: Step, num_drafts: int) -> DraftStep:
        """What a drafter computes after `step`."""
        assert isinstance(self.canvas, Canvas), "only verified drafts come from a drafter"
        return self.canvas.draft_step(step, min(num_drafts, self._max_new - self._num_new))

    def take_drafts(self, predictions: Sequence[Prediction]) -> None:
        """Take in what the drafter proposes, and show it to the reader as a guess."""
        assert isinstance(self.canvas, Canvas), "only verified drafts come from a drafter"
        self.canvas.take_drafts(predictions, gate=DRAFTER_GATE)
        if predictions and predictions[0].probability < SURE:
            # Where the drafter does not know, the text may have said it before.
            seen = copied(self.canvas.clean, len(predictions))
            self.canvas.drafts = seen or self.canvas.drafts
        self._cut_drafts()
        self._tell(self._text.commit((), self.canvas.drafts))

    def finish(self, reason: FinishReason, now: float, error: str | None = None) -> None:
        """Tell the reader that it is over."""
        self._tell(self._text.finish())
        if self._tools is not None:
            for event in self._tools.finish(cut_off=reason is FinishReason.LENGTH):
                self.generation.put(event)
            if self._tools.num_calls and reason is FinishReason.STOP:
                reason = FinishReason.TOOL_CALLS
        self.generation.put(Finished(reason, self._usage(now), error))

    def _predictions(self, step: Step, logits: NDArray[np.float32]) -> list[Prediction]:
        if self._spec.attention is Attention.CAUSAL_VERIFIED:
            return self._picker.predictions(logits, self.answer, self.canvas.drafts)
        first = step.start + self._spec.logit_shift - self._num_prompt
        return self._picker.reveal(logits, self.answer, [first + row for row in step.wanted])

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events if self._tools is None else self._tools.filter(events):
            self.generation.put(event)

    def _commit(self, outcome: Outcome, now: float) -> FinishReason | None:
        budget = outcome.committed[: self._max_new - self._num_new]
        ends = frozenset() if self.request.sampling.ignore_eos else self._spec.eos_ids
        ids = list(itertools.takewhile(lambda token: token not in ends, budget))
        ended = len(ids) < len(budget)
        num_forced = 0 if ended else self._force(ids)
        self._num_new += len(ids)
        self._num_accepted += min(len(ids), outcome.num_accepted)
        if self._first_commit_ms is None and ids:
            self._first_commit_ms = self._elapsed_ms(now)
        full = self._num_new >= self._max_new
        events = self._text.commit(ids, () if ended or full else self.canvas.drafts)
        logprobs = tuple(self._picker.logprobs[: len(ids) - num_forced])
        if self.request.sampling.num_logprobs is not None:
            logprobs += tuple(
                TokenLogprobs(token, 0.0, ()) for token in ids[len(ids) - num_forced :]
            )
        self._tell(
            [replace(e, logprobs=logprobs) if isinstance(e, Committed) else e for e in events]
        )
        if self._constraint and self._constraint.has_failed:
            return FinishReason.ERROR
        if ended or self._text.stopped or (self._constraint and self._constraint.is_finished):
            return FinishReason.STOP
        return FinishReason.LENGTH if full else None

    def _force(self, ids: list[int]) -> int:
        """Let the grammar take what came, and write what it leaves no choice about.

        Appends those tokens to ids and to the canvas; they cost no forward. Returns how many.
        """
        if self._constraint is None:
            return 0
        for token in ids:
            fits = self._constraint.advance(token)
            assert fits or self._constraint.has_failed, "what is committed was allowed"
        forced = self._constraint.forced()
        if forced:
            self.canvas.drafts = ()
            self.canvas.clean.extend(forced)
            ids += forced
        self._cut_drafts()
        return len(forced)

    def _cut_drafts(self) -> None:
        """Drop drafts from the first that the grammar does not allow."""
        if self._constraint is None or not self.canvas.drafts:
            return
        walker = self._constraint.copy()
        fitting = itertools.takewhile(walker.advance, self.canvas.drafts)
        self.canvas.drafts = tuple(fitting)

    def _elapsed_ms(self, now: float) -> float:
        return (now - self._admitted) * 1000

    def _usage(self, now: float) -> Usage:
        return Usage(
            num_prompt_tokens=self._num_prompt,
            num_cached_tokens=self._num_cached,
            num_completion_tokens=self._num_new,
            num_forwards=self._num_forwards,
            num_drafted=self._num_drafted,
            num_accepted=self._num_accepted,
            first_commit_ms=self._first_commit_ms,
            total_ms=self._elapsed_ms(now),
            accepted_counts=tuple(
                self._accepted_counts[n] for n in range(max(self._accepted_counts, default=-1) + 1)
            ),
        )
