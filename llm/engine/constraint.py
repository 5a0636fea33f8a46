"""The grammar of one request, followed token by token: what may come, what must, how to close.

In: tokens in order. Out: which tokens the grammar allows next, those that it forces, and a path
to its end that fits the budget. With tools on offer and free text, the grammar sleeps until a call
opens. Knows nothing of logits or canvases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from llm.tokenizer import Tokenizer

OPENING = b"<tool_call"
"""Where a sleeping grammar wakes up: a token always ends here, before the `>`."""

WATCH_BELOW = 160
"""Tokens left under which each step makes sure that the text can still be closed."""

LONGEST_CLOSING = 4096

_CLOSERS = (b'"', b"}", b"]", b"n", b"f", b"t", b"0", b"1", b"-", b"a", b"[", b"{")
"""What ends a value soonest comes first; where a string must go on, a letter does it."""


class Constraint:
    """Follows one request.

    matcher: at the start of the grammar. opening: wait for OPENING in free text first. eos_ids:
    end the text. budget: tokens that the answer may have.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: Tokenizer,
        *,
        eos_ids: frozenset[int],
        budget: int,
        sleeps: bool = False,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._left = budget
        self._tail = b""
        self._sleeps = sleeps

    @property
    def is_awake(self) -> bool:
        """Whether the grammar decides what comes next."""
        return not self._sleeps

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end of text may follow."""
        return not self._sleeps and self._matcher.is_stopped()

    def copy(self) -> Constraint:
        """Another that goes its own way from here."""
        other = Constraint(
            self._matcher.deep_copy(),
            self._tokenizer,
            eos_ids=self._eos_ids,
            budget=self._left,
            sleeps=self._sleeps,
        )
        other._tail = self._tail
        return other

    def allowed(self) -> NDArray[np.bool_] | None:
        """Tokens that may come next, bool [vocab]; None while everything may."""
        if self._sleeps:
            return None
        mask = self._bits()
        if self._left <= WATCH_BELOW and (path := self.closing()) is not None:
            self._keep_closable(mask, path)
        return mask

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
        return True

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, taken as well."""
        if self._sleeps or self._matcher.is_stopped():
            return []
        tokens = list(self._matcher.compute_ff_tokens())[: max(0, self._left - 1)]
        taken = tokens[: self._matcher.try_consume_tokens(tokens)] if tokens else []
        self._left -= len(taken)
        return taken

    def closing(self) -> list[int] | None:
        """A short way from here to where the text may end; None if none was found."""
        walker = self._matcher.deep_copy()
        path: list[int] = []
        while not walker.is_accepting() and len(path) < LONGEST_CLOSING:
            tokens = list(walker.compute_ff_tokens()) or self._closer(walker)
            if not tokens or walker.try_consume_tokens(tokens) < len(tokens):
                return None
            path += tokens
        return path if walker.is_accepting() else None

    def _keep_closable(self, mask: NDArray[np.bool_], path: Sequence[int]) -> None:
        """Leave only the way to the end in `mask` where another token might lead too far."""
        if len(path) + 2 < self._left // 2:
            return
        if path:
            mask[:] = False
            mask[path[0]] = True
        elif self._matcher.is_accepting():
            mask[:] = False
            mask[list(self._eos_ids)] = True

    def _bits(self) -> NDArray[np.bool_]:
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(packed, bitorder="little")[: self._tokenizer.vocab_size]
        return mask.astype(np.bool_)

    def _closer(self, walker: LLMatcher) -> list[int]:
        packed = np.frombuffer(walker.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
        by_text = {self._tokenizer.token_bytes(i): i for i in allowed if i not in self._eos_ids}
        for text in _CLOSERS:
            if text in by_text:
                return [by_text[text]]
        # A pattern: the longest token gets furthest.
        return [by_text[max(by_text, key=len)]] if by_text else []
