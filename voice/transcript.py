"""When two transcripts say the same: spelling, case and punctuation do not count."""

from __future__ import annotations

import re
import unicodedata

_FILLERS = re.compile(r"u[hm]+m?|erm?|hmm+|mm+")
_SPELLINGS = {
    "okay": "ok",
    "zero": "0",
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}


def words_of(text: str) -> tuple[str, ...]:
    """The words as they count for comparing: lower case, digits spelt one way, no fillers."""
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    found = re.findall(r"[^\W_]+(?:'[^\W_]+)*", text)
    return tuple(_SPELLINGS.get(word, word) for word in found if not _FILLERS.fullmatch(word))


def same_words(one: str, other: str) -> bool:
    """Whether both transcripts say the same words."""
    return words_of(one) == words_of(other)


def starts_with_words(text: str, beginning: str) -> bool:
    """Whether `text` says the words of `beginning` first."""
    start = words_of(beginning)
    return words_of(text)[: len(start)] == start
