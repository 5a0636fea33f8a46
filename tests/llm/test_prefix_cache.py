"""Pages are found by all text before them, by nobody with another salt, and forgotten last."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llm.engine.prefix_cache import CAUSAL_PAGE_TOKENS as PAGE_TOKENS
from llm.engine.prefix_cache import PrefixCache, page_tokens
from llm.models.spec import Attention, DiffusionSpec


def page_of(tokens: list[int]) -> np.ndarray:
    """A page that tells which text it was computed from."""
    return np.full((2, 1, PAGE_TOKENS, 4), hash(tuple(tokens)) % 1000, np.float32)


PAGE_BYTES = page_of([]).nbytes


def remember(cache: PrefixCache, tokens: list[int], salt: str = "") -> None:
    for key, start in cache.missing(tokens, salt):
        cache.add(key, page_of(tokens[: start + PAGE_TOKENS]))


texts = st.lists(st.integers(0, 2), max_size=4 * PAGE_TOKENS)


@given(st.lists(st.tuples(texts, st.sampled_from(["", "a"])), max_size=8), texts)
def test_what_is_found_was_computed_from_this_very_text(
    known: list[tuple[list[int], str]], asked: list[int]
) -> None:
    cache = PrefixCache(10**9, PAGE_TOKENS)
    for tokens, salt in known:
        remember(cache, tokens, salt)
    found = cache.find(asked, "a")
    for index, page in enumerate(found):
        assert np.array_equal(page, page_of(asked[: (index + 1) * PAGE_TOKENS]))
    common = max((shared(tokens, asked) for tokens, salt in known if salt == "a"), default=0)
    assert len(found) == common // PAGE_TOKENS


def shared(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_memory_stays_below_the_limit_and_the_oldest_goes_first() -> None:
    cache = PrefixCache(3 * PAGE_BYTES, PAGE_TOKENS)
    first, second, third, fourth = ([n] * PAGE_TOKENS for n in range(4))
    for text in (first, second, third):
        remember(cache, text)
    assert cache.find(first, "")
    remember(cache, fourth)
    assert cache.num_bytes == 3 * PAGE_BYTES
    assert cache.find(first, "")
    assert not cache.find(second, "")
    assert cache.find(fourth, "")


def test_nothing_is_held_without_memory() -> None:
    cache = PrefixCache(0, PAGE_TOKENS)
    remember(cache, [1] * PAGE_TOKENS)
    assert (cache.find([1] * PAGE_TOKENS, ""), cache.num_bytes) == ([], 0)


def test_a_page_is_what_depends_on_nothing_behind_it() -> None:
    def pages(attention: Attention, **options: bool) -> int:
        return page_tokens(DiffusionSpec(0, frozenset(), attention=attention, **options))

    assert pages(Attention.CAUSAL_VERIFIED) == PAGE_TOKENS
    assert pages(Attention.BLOCK_CAUSAL) == 32
    assert pages(Attention.BLOCK_CAUSAL, blocks_from_prompt_end=True) == 0
    assert pages(Attention.FULL) == 0
    nothing = PrefixCache(10**9, 0)
    assert (nothing.find([1] * 99, ""), nothing.missing([1] * 99, "")) == ([], [])
