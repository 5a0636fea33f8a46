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

    page_tokens: tokens of a page; 0 holds and finds nothing.
    """

    def __init__(self, max_bytes: int, page_tokens: int) -> None:
        self._max_bytes = max_bytes
        self.page_tokens = page_tokens
        self._pages: OrderedDict[bytes, Pages] = OrderedDict()
        self.num_bytes = 0

    def find(self, tokens: Sequence[int], salt: str) -> list[Pages]:
        """The pages known of the start of `tokens`, in order, at most all whole ones."""
        found = []
        for key, _ in self._keys(tokens, salt):
            if key not in self._pages:
                break
            self._pages.move_to_end(key)
            found.append(self._pages[key])
        return found

    def missing(self, tokens: Sequence[int], salt: str) -> list[tuple[bytes, int]]:
        """Key and first position of each whole page of `tokens` that is not held."""
        return [(key, start) for key, start in self._keys(tokens, salt) if key not in self._pages]

    def add(self, key: bytes, page: Pages) -> None:
        """Hold a page under the key that `missing` gave for it."""
        assert page.shape[2] == self.page_tokens, "pages are whole"
        if key in self._pages or page.nbytes > self._max_bytes:
            return
        self._pages[key] = np.ascontiguousarray(page)
        self.num_bytes += page.nbytes
        while self.num_bytes > self._max_bytes:
            _, dropped = self._pages.popitem(last=False)
            self.num_bytes -= dropped.nbytes

    def _keys(self, tokens: Sequence[int], salt: str) -> Iterator[tuple[bytes, int]]:
        key = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        size = self.page_tokens
        for start in range(0, len(tokens) - size + 1, size) if size else ():
            page = np.array(tokens[start : start + size], np.int64).tobytes()
            key = hashlib.blake2b(page, key=key, digest_size=16).digest()
            yield key, start
