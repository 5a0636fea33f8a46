"""A decision in progress, beside the generations of the engine. For the engine's worker only.

Times are seconds of the engine's clock, handed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm.engine.canvas import DraftStep, Prediction, Step
from llm.engine.decision import Decision, DecisionError, Tokens, open_scores
from llm.engine.decoding import Decoding
from llm.engine.generation import Generation
from llm.models.spec import DiffusionSpec
from llm.types import Finished, FinishReason, Request, Usage


class Deciding:
    """One decision between admission and its end.

    labels, tokens: the labels as text and as `label_tokens` gives them. admitted: when, in seconds
    of the engine's clock. slot: where its cache is.
    """

    def __init__(
        self,
        generation: Generation,
        request: Request,
        prompt: Sequence[int],
        *,
        labels: Sequence[str],
        tokens: Sequence[Tokens],
        spec: DiffusionSpec,
        decoding: Decoding,
        admitted: float,
    ) -> None:
        self.generation = generation
        self.request = request
        self.slot = -1
        self._prompt = prompt
        self._labels = tuple(labels)
        self._tokens = tokens
        self._spec = spec
        self._decoding = decoding
        self._admitted = admitted
        self._num_forwards = 0
        self.take_prefix(0)

    @property
    def num_todo(self) -> int:
        """Rows to compute before it can predict."""
        return max(1, len(self._prompt) - self.canvas.num_cached)

    @property
    def num_tokens_at_most(self) -> int:
        """Tokens of the prompt and of the longest label."""
        return len(self._prompt) + max(map(len, self._tokens))

    def is_overdue(self, now: float) -> bool:
        """Whether its deadline has passed."""
        deadline_ms = self.request.deadline_ms
        return deadline_ms is not None and (now - self._admitted) * 1000 > deadline_ms

    def take_prefix(self, num_tokens: int) -> None:
        """The slot holds the first num_tokens of the prompt already; said before the first step."""
        self.canvas = open_scores(
            self._spec, self._prompt, self._tokens, decoding=self._decoding, num_cached=num_tokens
        )
        self._num_restored = self.canvas.num_cached

    def next_step(self, max_rows: int, max_masks: int) -> Step:  # noqa: ARG002 - as generations
        """The next forward, of at most max_rows rows of the prompt."""
        return self.canvas.next_step(max_rows=max_rows)

    def apply(self, step: Step, logits: NDArray[np.float32], now: float) -> None:  # noqa: ARG002
        """Take in a forward; it is over when the canvas is done."""
        self.canvas.apply(step, logits)
        self._num_forwards += 1

    def draft_step(self, step: Step, num_drafts: int) -> DraftStep | None:  # noqa: ARG002
        """What a drafter has to read so that the prompt's pages are whole for who comes after."""
        end = min(step.start + len(step.tokens), len(self._prompt) - 1)
        known = self._prompt[step.start + 1 : end + 1]
        return DraftStep(step.start, tuple(known), 0) if known else None

    def take_drafts(self, predictions: Sequence[Prediction]) -> None:
        """Nothing is drafted for labels."""
        assert not predictions, "a decision asks for no drafts"

    def finish(self, reason: FinishReason, now: float, error: str | None = None) -> None:
        """Tell the reader that it is over."""
        usage = Usage(
            num_prompt_tokens=len(self._prompt),
            num_cached_tokens=self._num_restored,
            num_forwards=self._num_forwards,
            total_ms=(now - self._admitted) * 1000,
        )
        self.generation.put(Finished(reason, usage, error))

    def result(self, finished: Finished) -> Decision:
        """The decision, once `finished` was told. Raises DecisionError where it was cut off."""
        if finished.reason is not FinishReason.STOP:
            raise DecisionError(finished)
        logprobs, mass = self.canvas.normalised()
        return Decision(self._labels, logprobs, mass, finished.usage)
