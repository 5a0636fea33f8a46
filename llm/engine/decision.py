"""Which of some labels the answer is: the model's own probabilities of them, with nothing written.

A label's probability is the product of its tokens', each given the prompt and the label up to
there. Labels of one token need one forward, which is the prompt's own; longer ones need a row for
each further token, and share what they begin with. `Scores` says what to compute next and takes in
logits. No requests, no clock, no tensors.

Where a model refines masks, a token's probability is that of the first mask behind the prompt and
the label's start, as if the prompt ended there.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm.engine.canvas import Step
from llm.engine.canvases import open_canvas
from llm.engine.decoding import Decoding
from llm.engine.prefix_cache import page_tokens
from llm.models.spec import Attention, DiffusionSpec
from llm.types import Finished, InvalidRequestError, Usage

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


class Scores(ABC):
    """The probabilities of labels behind one prompt, being computed.

    clean: the prompt. labels: the tokens of each, none the beginning of another. num_cached: how
    much of the prompt the slot holds and others may use.
    """

    num_cached: int

    def __init__(self, spec: DiffusionSpec, clean: Sequence[int], labels: Sequence[Tokens]) -> None:
        self.clean = list(clean)
        self._spec = spec
        self._labels = labels
        self._logprobs: dict[Tokens, float] = {}
        # What labels begin with, behind which a prediction is needed; the next one stands last.
        self._todo = sorted({label[:n] for label in labels for n in range(len(label))})[::-1]

    @property
    def done(self) -> bool:
        """Whether every label has its probability."""
        return not self._todo

    @abstractmethod
    def next_step(self, *, max_rows: int) -> Step:
        """The next forward, of at most max_rows rows of the prompt."""

    @abstractmethod
    def apply(self, step: Step, logits: NDArray[np.float32]) -> None:
        """Take in a forward's logits, [rows wanted, vocab]."""

    def normalised(self) -> tuple[tuple[float, ...], float]:
        """Log-probability of each label among the labels, and the probability of all together."""
        assert self.done, "probabilities come when all is computed"
        totals = [
            sum(self._logprobs[label[: n + 1]] for n in range(len(label))) for label in self._labels
        ]
        whole = float(np.logaddexp.reduce(totals))
        return tuple(total - whole for total in totals), min(1.0, float(np.exp(whole)))

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

    def _hold(self, end: int) -> int:
        """The prompt up to `end`, but for its last token, which whoever comes after computes."""
        return min(end, len(self.clean) - 1)


class CausalScores(Scores):
    """Of a model whose clean text is causal: each row predicts the token behind it.

    One step computes a whole label, beginning where it differs from the label before; the first
    rides on the prompt.
    """

    def __init__(
        self, spec: DiffusionSpec, clean: Sequence[int], labels: Sequence[Tokens], num_cached: int
    ) -> None:
        super().__init__(spec, clean, labels)
        self.num_cached = self._hold(num_cached)
        # The rows before the end of a path come with it.
        ends = self._todo[:1] + [b for a, b in itertools.pairwise(self._todo) if a[: len(b)] != b]
        self._todo = ends
        self._computed: Tokens | None = None
        self._asked: tuple[Tokens, ...] = ()

    def next_step(self, *, max_rows: int) -> Step:
        """The next forward, of at most max_rows rows of the prompt and one label."""
        prompt, path = self.clean, self._todo[-1]
        if self._computed is not None:
            shared = _num_shared(path, self._computed)
            self._asked = tuple(path[:n] for n in range(shared + 1, len(path) + 1))
            return _causal(len(prompt) + shared, path[shared:], len(self._asked))
        todo = prompt[self.num_cached :]
        if len(todo) > max_rows:
            self._asked = ()
            return _causal(self.num_cached, todo[:max_rows], 0)
        self._asked = tuple(path[:n] for n in range(len(path) + 1))
        return _causal(self.num_cached, (*todo, *path), len(self._asked))

    def apply(self, step: Step, logits: NDArray[np.float32]) -> None:
        """Take in a forward's logits, [rows wanted, vocab]."""
        for start, row in zip(self._asked, logits, strict=True):
            self._read(start, row)
        if self._asked:
            self._computed = self._todo.pop()
        self.num_cached = max(self.num_cached, self._hold(step.start + len(step.tokens)))


class MaskScores(Scores):
    """Of a model that refines masks: the first mask behind a label's start predicts its token."""

    def __init__(
        self,
        spec: DiffusionSpec,
        clean: Sequence[int],
        labels: Sequence[Tokens],
        num_cached: int,
        decoding: Decoding,
    ) -> None:
        super().__init__(spec, clean, labels)
        self._decoding = decoding
        self._open_canvas(num_cached)

    def next_step(self, *, max_rows: int) -> Step:
        """The next forward, of at most max_rows rows where rows can be computed apart."""
        return self._canvas.next_step(max_rows=max_rows, num_masks=0)

    def apply(self, step: Step, logits: NDArray[np.float32]) -> None:
        """Take in a forward's logits, [rows wanted, vocab]."""
        if not step.wanted:
            self._canvas.apply(step, (), gate=1.0)
            self.num_cached = self._hold(step.start + len(step.tokens))
            return
        start = self._todo.pop()
        target = len(self.clean) + len(start)
        self._read(start, logits[step.wanted.index(target - self._spec.logit_shift - step.start)])
        # Rows of whole blocks before the mask are final now; others saw masks.
        size = page_tokens(self._spec)
        self.num_cached = self._hold(target // size * size) if size else 0
        if self._todo:
            self._open_canvas(self.num_cached)

    def _open_canvas(self, num_cached: int) -> None:
        start = self._todo[-1]
        self._canvas = open_canvas(
            self._spec,
            (*self.clean, *start),
            # The canvas ends with the longest label, whichever is looked at.
            max_new_tokens=max(map(len, self._labels)) - len(start),
            num_cached=num_cached,
            decoding=self._decoding,
        )
        self.num_cached = self._hold(self._canvas.num_cached)


def open_scores(
    spec: DiffusionSpec,
    clean: Sequence[int],
    labels: Sequence[Tokens],
    *,
    decoding: Decoding,
    num_cached: int = 0,
) -> Scores:
    """What computes the probabilities of labels behind the prompt `clean`.

    labels: as `label_tokens` gives them. num_cached: how much of the prompt the slot holds.
    decoding: how the canvas of a model that refines masks is opened.
    """
    if spec.attention is Attention.CAUSAL_VERIFIED:
        return CausalScores(spec, clean, labels, num_cached)
    return MaskScores(spec, clean, labels, num_cached, decoding)


def _num_shared(a: Tokens, b: Tokens) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _causal(start: int, tokens: Sequence[int], num_wanted: int) -> Step:
    """A step over causal rows whose last num_wanted predictions are needed."""
    end = len(tokens)
    visible = range(start + 1, start + end + 1)
    return Step(start, tuple(tokens), tuple(visible), tuple(range(end - num_wanted, end)))
