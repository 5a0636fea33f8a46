"""The grammar of one request, followed token by token: what may come, what must, how to close.

In: tokens in order. Out: which tokens the grammar allows next, those that it forces, and whether
the text can still be closed within the budget: a way to the end is known at every place, and no
token is taken that leaves none. With tools on offer and free text, the grammar sleeps until a call
opens. Knows nothing of canvases.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from llm.tokenizer import Tokenizer

OPENING = b"<tool_call"
"""Where a sleeping grammar wakes up: before the `>`, which often shares a token with the `{`."""

LONGEST_CLOSING = 2048
"""Tokens after which a way to the end is no longer looked for."""

_INSIDE_TEXT = b"bqz"
"""Where all of these may come next, a string or a free pattern is open."""

_CLOSERS = b'}]",0@.:/-Tntf129Za+_ [{'
"""What ends a value soonest comes first."""

_TIRED = 4
"""Places in that order by which a token that was used falls behind."""


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
        self._tail = b""
        self._sleeps = sleeps
        self._forced: list[int] = list(matcher.compute_ff_tokens())
        self._way = self._search(LONGEST_CLOSING)
        self._is_watched = self._way is not None

    @property
    def shortest(self) -> int | None:
        """Tokens of the shortest way to the end that was found from here, None where none was."""
        return None if self._way is None else len(self._way)

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

    @property
    def way_out(self) -> int:
        """The token that leads to the end soonest, as far as is known."""
        return self._way[0] if self._way else min(self._eos_ids)

    def copy(self) -> Constraint:
        """Another that goes its own way from here."""
        other = copy.copy(self)
        other._matcher = self._matcher.deep_copy()
        return other

    def allowed(self) -> NDArray[np.bool_] | None:
        """Tokens that may come next, bool [vocab]; None while everything may."""
        if self._sleeps or self.has_failed:
            return None
        if self._forced:
            # As it is written where nothing was drafted, so that drafts change nothing.
            mask = np.zeros(self._tokenizer.vocab_size, np.bool_)
            mask[self._forced[0]] = True
            return mask
        return self._bits(self._matcher)

    def can_take(self, token: int) -> bool:
        """Whether the text can be followed and closed within the budget behind this token."""
        after = self.copy()
        if not after.advance(token):
            return False
        if after._sleeps:
            return True
        # Says now what would otherwise be said when the token is committed.
        after._matcher.compute_bitmask()
        is_open = after._way is not None and len(after._way) <= after._left
        return not after.has_failed and (is_open or not after._is_watched)

    def advance(self, token: int) -> bool:
        """Take a token that came. False, and unchanged, where the grammar does not allow it."""
        if self._sleeps:
            return self._listen(self._tokenizer.token_bytes(token))
        if token in self._eos_ids:
            return bool(self._matcher.is_accepting())
        if self._matcher.try_consume_tokens([token]) == 0:
            return False
        self._left -= 1
        # What was forced stays as it was split into tokens, whether it came at once or not.
        rest = self._forced[1:] if self._forced[:1] == [token] else []
        self._forced = rest or list(self._matcher.compute_ff_tokens())
        if self._is_watched:
            self._way = self._way_behind(token)
        return True

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, taken as well."""
        if self._sleeps or self.has_failed:
            return []
        taken: list[int] = []
        while self._forced and self._left > 0 and self.advance(token := self._forced[0]):
            taken.append(token)
        return taken

    def _listen(self, text: bytes) -> bool:
        """Take free text; wake up where a call opens, whose first letters may be in `text` too."""
        heard = self._tail + text
        _, opens, rest = heard.partition(OPENING)
        if opens:
            letters = [self._closers.tokens.get(byte, -1) for byte in rest]
            matcher = self._matcher.deep_copy()
            if -1 in letters or matcher.try_consume_tokens(letters) < len(letters):
                return False
            self._matcher, self._sleeps = matcher, False
        self._tail = heard[1 - len(OPENING) :]
        self._left -= 1
        if opens and rest:
            self._forced = list(self._matcher.compute_ff_tokens())
            self._way = self._search(LONGEST_CLOSING)
        return True

    def _way_behind(self, token: int) -> list[int] | None:
        """A way to the end behind a token that was just taken; the known one where it will do."""
        known = self._way or []
        if known[:1] == [token]:
            return known[1:]
        # Text goes on inside of a value, which closes as before, or a value was closed.
        ways = (known[first:] for first in range(min(3, len(known)) + 1))
        way = next((way for way in ways if self._closes(way)), None)
        if way is None or len(way) > self._left:
            found = self._search(self._left)
            way = found if found is not None else way
        return way

    def _closes(self, way: list[int]) -> bool:
        walker = self._matcher.deep_copy()
        if walker.try_consume_tokens(way) < len(way):
            return False
        return bool(walker.is_accepting())

    def _search(self, limit: int) -> list[int] | None:
        """A short way of at most about `limit` tokens to where the text may end."""
        walker = self._matcher.deep_copy()
        way: list[int] = []
        used: Counter[int] = Counter()
        while not walker.is_accepting() and len(way) <= limit:
            forced = list(walker.compute_ff_tokens()) if way else self._forced
            tokens = forced or self._closer(walker, used)
            if not tokens or walker.try_consume_tokens(tokens) < len(tokens):
                return None
            way += tokens
        return way if walker.is_accepting() else None

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
        lengths = np.where(bits, self._closers.lengths, 0)
        longest = int(lengths.argmax())
        if inside and (used[-1] <= used[-2] or not usable):
            # In turns with what may end a pattern: a string may have a least length.
            used[-1] += 1
            return [longest]
        used[-2] += inside
        if usable:
            ranks = [rank + _TIRED * used[token] for rank, token in enumerate(usable)]
            token = usable[ranks.index(min(ranks))]
            used[token] += 1
            return [token]
        return [longest] if lengths[longest] else []
