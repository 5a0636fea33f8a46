"""The grammar of one request, followed token by token: what may come, what must, how to close.

In: tokens in order. Out: which tokens the grammar allows next, those that it forces, and whether
the text can still be closed within the budget. With tools on offer and free text, the grammar
sleeps until a call opens. Knows nothing of canvases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from llm.tokenizer import Tokenizer

OPENING = b"<tool_call"
"""Where a sleeping grammar wakes up: a token always ends here, before the `>`."""

LEAST_JUMP = 48
"""Tokens by which the way to the end may grow with one token: where that would be too many, the
token is tried first. More where the shortest text is longer: a token may open as much again."""

NUM_TRIED = 8
"""Best tokens that are tried so, when the budget is short; the way to the end is always left."""

LONGEST_CLOSING = 2048

_INSIDE_TEXT = b"bqz"
"""Where all of these may come next, a string or a free pattern is open."""

_CLOSERS = b'}]"@.:-/Tntf0129a [{'
"""What ends a value soonest comes first."""


@dataclass(frozen=True, slots=True)
class Closers:
    """What a vocabulary offers for closing: its tokens of one byte, and how long each token is."""

    tokens: dict[int, int]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Closers:
        """Look them up, once for a vocabulary."""
        texts = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        single = {text[0]: index for index, text in enumerate(texts) if len(text) == 1}
        return cls(single, np.array([len(text) for text in texts]))


class Constraint:
    """Follows one request.

    matcher: at the start of the grammar. sleeps: wait for OPENING in free text first. eos_ids: end
    the text. budget: tokens that the answer may have.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: Tokenizer,
        closers: Closers,
        *,
        eos_ids: frozenset[int],
        budget: int,
        sleeps: bool = False,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._closers = closers
        self._eos_ids = eos_ids
        self._left = budget
        self._num_taken = 0
        self._jump = LEAST_JUMP
        self._tail = b""
        self._sleeps = sleeps

    def measure(self) -> int | None:
        """Length of the shortest text found, None where none was; said before the first token."""
        path = self.closing()
        self._jump = max(LEAST_JUMP, len(path or ()))
        return None if path is None else len(path)

    @property
    def is_awake(self) -> bool:
        """Whether the grammar decides what comes next."""
        return not self._sleeps

    @property
    def has_failed(self) -> bool:
        """Whether the text became too complex to be followed."""
        return bool(self._matcher.is_error())

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end of text may follow, or it may and the budget is used up."""
        if self._sleeps or self.has_failed:
            return False
        return self._matcher.is_stopped() or (self._left <= 0 and self._matcher.is_accepting())

    def copy(self) -> Constraint:
        """Another that goes its own way from here."""
        other = Constraint(
            self._matcher.deep_copy(),
            self._tokenizer,
            self._closers,
            eos_ids=self._eos_ids,
            budget=self._left,
            sleeps=self._sleeps,
        )
        other._tail = self._tail
        other._jump, other._num_taken = self._jump, self._num_taken
        return other

    def allowed(self, logits: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """Tokens that may come next, of the shape of logits; None while everything may.

        logits: [vocab], which say what is worth trying when the budget is short.
        """
        if self._sleeps or self.has_failed:
            return None
        mask = np.zeros(len(logits), np.bool_)
        if forced := self._matcher.compute_ff_tokens():
            # As it is written where nothing was drafted, so that drafts change nothing.
            mask[forced[0]] = True
            return mask
        bits = self._bits(self._matcher)
        mask[: len(bits)] = bits
        # Text that was not watched can have opened about as much as it has tokens.
        if self._left > max(4 * self._jump, 2 * self._num_taken):
            return mask
        path = self.closing()
        if path is None or len(path) + self._jump < self._left:
            return mask
        return self._closable(mask, logits, path)

    def advance(self, token: int) -> bool:
        """Take a token that came. False, and unchanged, where the grammar does not allow it."""
        if self._sleeps:
            self._tail = (self._tail + self._tokenizer.token_bytes(token))[-len(OPENING) :]
            self._sleeps = self._tail != OPENING
            self._left -= 1
            return True
        if token in self._eos_ids and self._matcher.is_accepting():
            return True
        if self._matcher.try_consume_tokens([token]) == 0:
            return False
        self._left -= 1
        self._num_taken += 1
        return True

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, taken as well."""
        if self._sleeps or self.has_failed or self._matcher.is_stopped():
            return []
        tokens = list(self._matcher.compute_ff_tokens())[: max(0, self._left)]
        taken = tokens[: self._matcher.try_consume_tokens(tokens)] if tokens else []
        self._left -= len(taken)
        self._num_taken += len(taken)
        return taken

    def closing(self) -> list[int] | None:
        """A short way from here to where the text may end; None if none was found."""
        walker = self._matcher.deep_copy()
        path: list[int] = []
        used: Counter[int] = Counter()
        while not walker.is_accepting() and len(path) < LONGEST_CLOSING:
            tokens = list(walker.compute_ff_tokens()) or self._closer(walker, used)
            if not tokens or walker.try_consume_tokens(tokens) < len(tokens):
                return None
            path += tokens
        return path if walker.is_accepting() else None

    def _closable(
        self, mask: NDArray[np.bool_], logits: NDArray[np.float32], path: list[int]
    ) -> NDArray[np.bool_]:
        """Of the allowed tokens the best that leave a way to the end, and that way itself."""
        scores = np.where(mask, logits, -np.inf)
        best = np.argpartition(-scores, min(NUM_TRIED, len(scores) - 1))[:NUM_TRIED].tolist()
        kept = np.zeros_like(mask)
        for token in best:
            kept[token] = mask[token] and self._can_follow(token)
        for token in path[:1] or (self._eos_ids if not kept.any() else ()):
            kept[token] = True
        return kept

    def _can_follow(self, token: int) -> bool:
        """Whether the text can still be closed behind this token."""
        if token in self._eos_ids:
            return True
        after = self.copy()
        if not after.advance(token):
            return False
        path = after.closing()
        return path is not None and len(path) <= after._left

    def _bits(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        packed = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(packed, bitorder="little")[: self._tokenizer.vocab_size]
        return bits.astype(np.bool_)

    def _closer(self, walker: LLMatcher, used: Counter[int]) -> list[int]:
        """The next token of a short way: what closes, else what was not tried so often yet."""
        bits = self._bits(walker)
        bits[list(self._eos_ids)] = False
        single = self._closers.tokens
        inside = all(byte in single and bits[single[byte]] for byte in _INSIDE_TEXT)
        quote = single.get(ord('"'))
        if inside and quote is not None and bits[quote]:
            return [quote]
        usable = [single[byte] for byte in _CLOSERS if byte in single and bits[single[byte]]]
        if usable and not inside:
            token = min(usable, key=lambda t: used[t])
            used[token] += 1
            return [token]
        lengths = np.where(bits, self._closers.lengths, 0)
        longest = int(lengths.argmax())
        return [longest] if lengths[longest] else []
