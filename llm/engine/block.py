"""A block while its masks are being revealed: tokens, what is masked, how each came to be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from llm.engine.canvas import Prediction
from llm.engine.policy import BlockView, Flags, Floats, Ints, Memory, Policy


class Block:
    """The positions [start, end) of a sequence.

    tokens: int64 [n], mask_id where masked. masked: bool [n]. ours: bool [n], not of the prompt.
    confidence: float64 [n], the probability at which a token came in. forward: int64 [n], the
    number of the forward that it came with, -1 for none.
    """

    def __init__(self, start: int, end: int, mask_id: int, prompt: Sequence[int] = ()) -> None:
        assert len(prompt) < end - start, "a block without masks needs no refinement"
        n = end - start
        self.start = start
        self.end = end
        self.mask_id = mask_id
        self.tokens: Ints = np.full(n, mask_id, np.int64)
        self.tokens[: len(prompt)] = prompt
        self.ours: Flags = np.arange(n) >= len(prompt)
        self.masked: Flags = self.ours.copy()
        self.confidence: Floats = np.where(self.ours, 0.0, 1.0)
        self.forward: Ints = np.full(n, -1, np.int64)
        self._num_forwards = 0
        self._memory = Memory.fresh(self.masked)

    def view(self, asked: Sequence[int], predictions: Sequence[Prediction]) -> BlockView:
        """What predictions for the positions `asked` say; the others cannot be revealed now."""
        n = len(self.tokens)
        view = BlockView(np.zeros(n), np.full(n, np.inf), np.zeros(n, np.bool_), np.full(n, -1))
        for at, prediction in zip(asked, predictions, strict=True):
            assert prediction.token != self.mask_id, "the mask is never a prediction"
            view.confidence[at] = prediction.probability
            view.entropy[at] = prediction.entropy
            view.token[at] = prediction.token
            view.masked[at] = self.masked[at]
        self._num_forwards += 1
        return view

    def reveal(self, view: BlockView, policy: Policy) -> None:
        """Put in the tokens that the policy chooses."""
        chosen, self._memory = policy.choose(view, self._memory)
        assert chosen.any() and not (chosen & ~view.masked).any(), "a policy reveals masks"
        self.put(view, chosen)

    def put(self, view: BlockView, chosen: Flags) -> None:
        """Put in the view's tokens at the chosen positions, bool [n]."""
        self.tokens[chosen] = view.token[chosen]
        self.confidence[chosen] = view.confidence[chosen]
        self.forward[chosen] = self._num_forwards
        self.masked[chosen] = False

    def mask_again(self, chosen: Flags) -> None:
        """Take the tokens at the chosen positions out, bool [n]."""
        assert not (chosen & ~self.ours).any(), "the prompt stays as it is"
        self.tokens[chosen] = self.mask_id
        self.masked[chosen] = True
        self.restart()

    def restart(self) -> None:
        """Policies forget the steps so far."""
        self._memory = Memory.fresh(self.masked)

    def num_final(self, eos_ids: Collection[int]) -> tuple[int, bool]:
        """Tokens up to the first mask, or with the first end of text; and whether that is there."""
        for at, token in enumerate(self.tokens.tolist()):
            if self.masked[at]:
                return at, False
            if self.ours[at] and token in eos_ids:
                return at + 1, True
        return len(self.tokens), False

    def guess(
        self, view: BlockView, first: int, gate: float, eos_ids: Collection[int]
    ) -> tuple[int, ...]:
        """Tokens from `first` on, revealed or at least `gate` probable, up to the first doubt."""
        guess: list[int] = []
        for at in range(first, len(self.tokens)):
            sure = not self.masked[at] or view.confidence[at] >= gate
            token = int(view.token[at] if self.masked[at] else self.tokens[at])
            if not sure or token < 0 or token in eos_ids:
                break
            guess.append(token)
        return tuple(guess)
