"""Keys and values of text that was computed before, found again by its content.

Text is cut into pages; a page's key is the hash of its tokens and of the key
before it, so equal keys mean equal text from the very start, and begins with the caller's salt, so
callers never find each other's text. Pure: holds copies, knows nothing of slots or requests.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from llm.engine.runner import Pages
from llm.models.spec import Attention, DiffusionSpec

CAUSAL_PAGE_TOKENS = 16


def page_tokens(spec: DiffusionSpec) -> int:
    """Tokens of a page for a model, or 0 where what was computed is of no use to others.

    A page's keys and values must depend on nothing behind it: with causal text any cut will do,
    with blocks that see themselves a page is a block, if blocks lie where they lay before.
    """
    match spec.attention:
        case Attention.CAUSAL_VERIFIED:
            return CAUSAL_PAGE_TOKENS
        case Attention.BLOCK_CAUSAL:
            return 0 if spec.blocks_from_prompt_end else spec.block_length
        case Attention.FULL:
            return 0


class PrefixCache:
    """Least recently used pages go first once `max_bytes` are held.

    All pages lie in one array, as large as it may get, whose untouched part costs no memory: so
    many short-lived arrays of 0.7 MB would leave holes in the heap, 3 % in 10,000 requests.
    page_tokens: tokens of a page; 0 holds and finds nothing.
    """

    def __init__(self, max_bytes: int, page_tokens: int) -> None:
        self._max_bytes = max_bytes
        self.page_tokens = page_tokens
        self._pages: Pages | None = None
        self._places: OrderedDict[bytes, int] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        """Bytes of the pages that are held."""
        return 0 if self._pages is None else len(self._places) * self._pages[0].nbytes

    def find(self, tokens: Sequence[int], salt: str) -> list[Pages]:
        """The pages known of the start of `tokens`, in order, at most all whole ones.

        They are to be read before the next `add`.
        """
        found: list[Pages] = []
        for key, _ in self._keys(tokens, salt):
            if self._pages is None or key not in self._places:
                break
            self._places.move_to_end(key)
            found.append(self._pages[self._places[key]])
        return found

    def missing(self, tokens: Sequence[int], salt: str) -> list[tuple[bytes, int]]:
        """Key and first position of each whole page of `tokens` that is not held."""
        return [(key, start) for key, start in self._keys(tokens, salt) if key not in self._places]

    def add(self, key: bytes, page: Pages) -> None:
        """Hold a page under the key that `missing` gave for it."""
        assert page.shape[2] == self.page_tokens, "pages are whole"
        room = self._max_bytes // page.nbytes
        if key in self._places or not room:
            return
        if self._pages is None:
            self._pages = np.empty((room, *page.shape), page.dtype)
        place = len(self._places)
        if place == room:
            _, place = self._places.popitem(last=False)
        self._pages[place] = page
        self._places[key] = place

    def _keys(self, tokens: Sequence[int], salt: str) -> Iterator[tuple[bytes, int]]:
        key = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        size = self.page_tokens
        for start in range(0, len(tokens) - size + 1, size) if size else ():
            page = np.array(tokens[start : start + size], np.int64).tobytes()
            key = hashlib.blake2b(page, key=key, digest_size=16).digest()
            yield key, start
