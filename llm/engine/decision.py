"""Which of some labels the answer is: the model's own probabilities of them, with nothing written.

A label's probability is the product of its tokens', each given the prompt and the label up to
there. Labels of one token need one forward, which is the prompt's own; longer ones need a row for
each further token, and share what they begin with. `Scores` says what to compute next and takes in
logits; `Deciding` is the request around it, for the engine's worker only. No clock, no tensors.

Where a model refines masks, a token's probability is that of the first mask behind the prompt and
the label's start, as if the prompt ended there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm.engine.canvas import DraftStep, Prediction, Step
from llm.engine.canvases import open_canvas
from llm.engine.decoding import Decoding
from llm.engine.generation import Generation
from llm.engine.prefix_cache import page_tokens
from llm.models.spec import Attention, DiffusionSpec
from llm.types import Finished, FinishReason, InvalidRequestError, Request, Usage

END = -1
"""Stands for "the text ends here" in a label's tokens."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """How probable each label is.

    labels: as they were asked. logprobs: natural, for each label, normalised over the labels.
    mass: 0 to 1, how probable it was that the answer begins with any of them. usage: the cost.
    """

    labels: tuple[str, ...]
    logprobs: tuple[float, ...]
    mass: float
    usage: Usage

    @property
    def best(self) -> str:
        """The most probable label; the first of equals."""
        return self.labels[int(np.argmax(self.logprobs))]

    @property
    def probabilities(self) -> tuple[float, ...]:
        """For each label, summing to 1."""
        return tuple(np.exp(self.logprobs).tolist())


class DecisionError(RuntimeError):
    """A decision was cut off; `finished` says why."""

    def __init__(self, finished: Finished) -> None:
        super().__init__(finished.error or f"the decision was ended: {finished.reason.value}")
        self.finished = finished


def label_tokens(labels: Sequence[str], encode: Callable[[str], list[int]]) -> list[Tokens]:
    """The tokens of each label.

    Where one label begins with another, as "not now" does with "not", all end with END: otherwise
    the shorter could never be less probable. Raises InvalidRequestError for labels that are none,
    empty or the same.
    """
    if not labels:
        raise InvalidRequestError("a decision needs at least one label")
    tokens = [tuple(encode(label)) for label in labels]
    if not all(tokens):
        raise InvalidRequestError("a label must not be empty")
    if len(set(tokens)) < len(tokens):
        raise InvalidRequestError("labels must differ from each other")
    ordered = sorted(tokens)
    # In this order whatever begins with a label follows it at once.
    if any(b[: len(a)] == a for a, b in itertools.pairwise(ordered)):
        return [(*label, END) for label in tokens]
    return tokens


class Scores:
    """The probabilities of labels behind one prompt, being computed.

    clean: the prompt. labels: the tokens of each, none the beginning of another. num_cached: how
    much of the prompt the slot holds; with masks, how much is of use to others.
    """

    def __init__(
        self,
        spec: DiffusionSpec,
        clean: Sequence[int],
        labels: Sequence[Tokens],
        *,
        decoding: Decoding,
        num_cached: int = 0,
    ) -> None:
        self.clean = list(clean)
        self._spec = spec
        self._labels = labels
        self._decoding = decoding
        self._logprobs: dict[Tokens, float] = {}
        self._asked: tuple[Tokens, ...] = ()
        self._path: Tokens = ()
        starts = sorted({label[:n] for label in labels for n in range(len(label))})
        if spec.attention is Attention.CAUSAL_VERIFIED:
            # One step computes all rows of a path, so only where paths end matters.
            pairs = itertools.pairwise(starts)
            starts = [a for a, b in pairs if b[: len(a)] != a] + starts[-1:]
            self._todo = starts[::-1]
            self.num_cached = min(num_cached, len(self.clean) - 1)
        else:
            self._todo = starts[::-1]
            self._open_canvas(num_cached)

    @property
    def done(self) -> bool:
        """Whether every label has its probability."""
        return not self._todo

    def next_step(self, *, max_rows: int) -> Step:
        """The next forward, of at most max_rows rows of the prompt."""
        assert self._todo, "nothing is left to compute"
        if self._spec.attention is Attention.CAUSAL_VERIFIED:
            return self._next_path(max_rows)
        step = self._canvas.next_step(max_rows=max_rows, num_masks=0)
        self._asked = (self._todo[-1],) if step.wanted else ()
        return step

    def apply(self, step: Step, logits: NDArray[np.float32]) -> None:
        """Take in a forward's logits, [rows wanted, vocab]."""
        if self._spec.attention is Attention.CAUSAL_VERIFIED:
            rows = list(logits)
            self.num_cached = max(
                self.num_cached, min(step.start + len(step.tokens), len(self.clean) - 1)
            )
        else:
            rows = self._first_mask(step, logits)
        for start, row in zip(self._asked, rows, strict=True):
            self._read(start, row)
        if self._asked:
            self._path = self._todo.pop()
            if self._todo and self._spec.attention is not Attention.CAUSAL_VERIFIED:
                self._open_canvas(self.num_cached)
        elif self._spec.attention is not Attention.CAUSAL_VERIFIED:
            self._canvas.apply(step, (), gate=1.0)

    def normalised(self) -> tuple[tuple[float, ...], float]:
        """Log-probability of each label among the labels, and the probability of all together."""
        assert self.done, "probabilities come when all is computed"
        totals = [
            sum(self._logprobs[label[: n + 1]] for n in range(len(label))) for label in self._labels
        ]
        whole = float(np.logaddexp.reduce(totals))
        return tuple(total - whole for total in totals), min(1.0, float(np.exp(whole)))

    def _next_path(self, max_rows: int) -> Step:
        prompt, path = self.clean, self._todo[-1]
        begun = self.num_cached if not self._logprobs else len(prompt)
        if len(prompt) - begun > max_rows:
            self._asked = ()
            end = begun + max_rows
            return _causal(begun, prompt[begun:end], ())
        if self._logprobs:
            shared = _num_shared(path, self._path)
            first = shared + 1
            start, tokens = len(prompt) + shared, path[shared:]
        else:
            first = 0
            start, tokens = begun, (*prompt[begun:], *path)
        self._asked = tuple(path[:n] for n in range(first, len(path) + 1))
        end = len(tokens)
        return _causal(start, tokens, range(end - len(self._asked), end))

    def _open_canvas(self, num_cached: int) -> None:
        start = self._todo[-1]
        longest = max(map(len, self._labels))
        self._canvas = open_canvas(
            self._spec,
            (*self.clean, *start),
            max_new_tokens=longest - len(start),
            num_cached=num_cached,
            decoding=self._decoding,
        )
        self.num_cached = min(self._canvas.num_cached, len(self.clean) - 1)

    def _first_mask(self, step: Step, logits: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        if not step.wanted:
            self.num_cached = min(step.start + len(step.tokens), len(self.clean) - 1)
            return []
        target = len(self.clean) + len(self._todo[-1])
        row = step.wanted.index(target - self._spec.logit_shift - step.start)
        size = page_tokens(self._spec)
        # Rows of whole blocks before the first mask are final now; others see masks.
        self.num_cached = min(target // size * size, len(self.clean) - 1) if size else 0
        return [logits[row]]

    def _read(self, start: Tokens, row: NDArray[np.float32]) -> None:
        """Note the probability of each token that goes on from a label's start."""
        logits = row.astype(np.float64)
        logits[self._spec.mask_id] = -np.inf
        logits -= np.logaddexp.reduce(logits)
        for label in self._labels:
            if len(label) > len(start) and label[: len(start)] == start:
                token = label[len(start)]
                ids = sorted(self._spec.eos_ids) if token == END else [token]
                self._logprobs[label[: len(start) + 1]] = float(np.logaddexp.reduce(logits[ids]))


def _num_shared(a: Tokens, b: Tokens) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _causal(start: int, tokens: Sequence[int], wanted: Sequence[int]) -> Step:
    visible = range(start + 1, start + len(tokens) + 1)
    return Step(start, tuple(tokens), tuple(visible), tuple(wanted))


class Deciding:
    """One decision between admission and its end, beside the generations of the engine.

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
        self.canvas = Scores(
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
