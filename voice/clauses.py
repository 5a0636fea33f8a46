"""Cuts the answer, while it is being written, into clauses that can be spoken one by one.

The first clause may be short, so that the voice starts early; later ones are longer, because a
voice sounds better the more it knows of a sentence. Text is taken one character at a time, so how
it happens to arrive makes no difference.
"""

from __future__ import annotations

import re
from enum import Enum

_DASH = "\u2014"
_MIN_WORDS_FIRST = 2
_MIN_WORDS = 8
# Without any punctuation the voice must not wait for ever.
_MAX_WORDS_FIRST = 12
_MAX_WORDS = 30
# Speakers also pause, without a comma, before a word that opens a new phrase.
_MIN_WORDS_BEFORE_PHRASE = 4
_PHRASE_OPENER = re.compile(
    "and|but|or|because|which|who|whose|when|while|where|whether|if|so|although|since|until|with|by"
    "|from|into"
)

# Closing quotation marks, brackets and Markdown; and the opening ones.
_CLOSERS = "\"'\u201d\u2019\u00bb)]}*_`"
_OPENERS = "\"'\u201c\u2018\u00ab([{*_`"
_PAUSES = (",", ";", ":", "\u2013", "\u2014", "...", "\u2026")
_SENTENCE_ENDS = (".", "!", "?")
# Words that are shortened, initials and pairs of them: "Dr.", "J.", "U.S.", "p.m.".
_ABBREVIATION = re.compile(
    r"(?:[^\W\d_]\.)+"
    r"|(?:dr|mr|mrs|ms|prof|st|jr|sr|vs|etc|approx|inc|ltd|co|dept|est|fig|vol|gen|col|sgt|capt|lt"
    r"|rev|hon|mt|ave|blvd|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|wed|thu|fri)\.",
    re.IGNORECASE,
)
_LIST_NUMBER = re.compile(r"\d{1,3}[.)]")


class _Break(Enum):
    """How natural it is to pause after a word."""

    NONE = 0
    PAUSE = 1
    SENTENCE = 2


class ClauseCutter:
    """Cuts one answer. The clauses, joined, are the text up to whitespace."""

    def __init__(self) -> None:
        self._clause = ""
        self._is_first = True

    def feed(self, text: str) -> list[str]:
        """Take the next piece of text; return the clauses that are complete with it."""
        clauses = []
        for character in text:
            self._clause += character
            if not character.isspace() and character != _DASH:
                continue
            if self._ends_here(character):
                clauses.append(self._take())
            elif self._is_first and (start := self._phrase_start()):
                self._clause, rest = self._clause[:start], self._clause[start:]
                clauses.append(self._take())
                self._clause = rest
        return clauses

    def finish(self) -> list[str]:
        """The text is over: return what is left of it."""
        rest = self._take()
        return [rest] if rest else []

    def _take(self) -> str:
        clause, self._clause = self._clause.strip(), ""
        self._is_first = self._is_first and not _has_word(clause)
        return clause

    def _ends_here(self, character: str) -> bool:
        if not _has_word(self._clause):
            return False
        # The dash of "1990—1995" belongs to the number.
        if character == _DASH and self._clause[-2:-1].isdigit():
            return False
        words = self._clause.split()
        if character == "\n":
            return True
        match _break_after(words[-1], opens_clause=len(words) == 1):
            case _Break.SENTENCE:
                return True
            case _Break.PAUSE:
                return len(words) >= (_MIN_WORDS_FIRST if self._is_first else _MIN_WORDS)
            case _Break.NONE:
                return len(words) >= (_MAX_WORDS_FIRST if self._is_first else _MAX_WORDS)

    def _phrase_start(self) -> int:
        """Where the last word begins if it opens a phrase after enough words; else 0."""
        words = self._clause.split()
        if len(words) <= _MIN_WORDS_BEFORE_PHRASE or not _PHRASE_OPENER.fullmatch(words[-1]):
            return 0
        return self._clause.rindex(words[-1])


def _break_after(word: str, *, opens_clause: bool) -> _Break:
    """Judge the break after `word`, which is followed by whitespace or is a dash."""
    bare = word.rstrip(_CLOSERS)
    if bare.endswith(_PAUSES):
        return _Break.PAUSE
    if not bare.endswith(_SENTENCE_ENDS) or not _has_word(bare):
        return _Break.NONE
    if opens_clause and _LIST_NUMBER.fullmatch(bare):
        return _Break.NONE
    if _ABBREVIATION.fullmatch(bare.lstrip(_OPENERS)):
        return _Break.NONE
    return _Break.SENTENCE


def _has_word(text: str) -> bool:
    return any(character.isalnum() for character in text)
