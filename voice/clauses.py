"""Cuts the answer, while it is being written, into clauses that can be spoken one by one.

The first clause may be short, so that the voice starts early; later ones are the longer the more
sound is waiting to be heard, because a voice sounds better the more it knows of a sentence, but
never so long that the sound runs out while they are made. Text is taken one character at a time,
so how it happens to arrive makes no difference.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum

_DASH = "\u2014"
_MIN_WORDS_FIRST = 2
# Words of a later clause from which on it may end at a comma, by the sound that waits: with
# little of it any comma must do, with much of it whole sentences are made.
_WAITING_MS = (500.0, 1_000.0, 2_000.0, 5_000.0)
_MIN_WORDS = (3, 4, 6, 8, 12)
# Without any punctuation the voice must not wait for ever.
_MAX_WORDS_FIRST = 8
_MAX_WORDS = 30
# Speakers also pause, without a comma, before a word that opens a new phrase.
_MIN_WORDS_BEFORE_PHRASE = 3
_MIN_WORDS_BEFORE_PREPOSITION = 4
_PHRASE_OPENER = re.compile(
    "and|but|or|because|which|who|whose|when|while|where|whether|if|so|although|since|until|with|by"
    "|from|into"
)
_PREPOSITION = re.compile(
    "in|on|at|for|that|as|than|about|after|before|between|during|through|under|without"
)
_HURRY_MS = 1_000.0
"""With less sound waiting than this, later clauses end before a new phrase too."""

_RESERVE_MS = 150.0
"""Sound that must be left when a clause is ready."""

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


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast clauses are made and spoken.

    real_time_factor: time to make a second of speech, in seconds. fixed_ms: what every clause costs
    besides. word_ms: how long a word sounds.
    """

    real_time_factor: float = 0.12
    fixed_ms: float = 60.0
    word_ms: float = 330.0

    def num_words(self, waiting_ms: float) -> int:
        """The longest clause that is ready before the sound that waits runs out."""
        if math.isinf(waiting_ms):
            return _MAX_WORDS
        room_ms = waiting_ms - _RESERVE_MS - self.fixed_ms
        return max(0, int(room_ms / (self.word_ms * self.real_time_factor)))


PACE = Pace()
"""A Piper voice on one core that the language model leaves alone, with some room."""


class ClauseCutter:
    """Cuts one answer. The clauses, joined, are the text up to whitespace.

    pace: of the voice.
    """

    def __init__(self, pace: Pace = PACE) -> None:
        self._pace = pace
        self._clause = ""
        self._is_first = True
        self._waiting_ms = math.inf

    def feed(self, text: str, waiting_ms: float = math.inf) -> list[str]:
        """Take the next piece of text; return the clauses that are complete with it.

        waiting_ms: the speech of this answer that is ready and has not been heard; what was cut
        and is not ready does not count. Infinite: never mind how long a clause takes.
        """
        self._waiting_ms = waiting_ms
        clauses = []
        for character in text:
            self._clause += character
            if not character.isspace() and character != _DASH:
                continue
            if start := self._phrase_start():
                self._clause, rest = self._clause[:start], self._clause[start:]
                clauses.append(self._take())
                self._clause = rest
            if self._ends_here(character):
                clauses.append(self._take())
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
                return len(words) >= self._min_words
            case _Break.NONE:
                return len(words) >= self._max_words

    @property
    def _min_words(self) -> int:
        """Words from which on a pause ends the clause."""
        if self._is_first:
            return _MIN_WORDS_FIRST
        least = _MIN_WORDS[bisect_right(_WAITING_MS, self._waiting_ms)]
        # The longest that is ready in time may be less than what sounds best.
        return max(1, min(least, self._pace.num_words(self._waiting_ms)))

    @property
    def _max_words(self) -> int:
        """Words at which the clause ends wherever it is."""
        if self._is_first:
            return _MAX_WORDS_FIRST
        return min(_MAX_WORDS, max(_MIN_WORDS[0], self._pace.num_words(self._waiting_ms)))

    def _phrase_start(self) -> int:
        """Where the last word begins if it opens a phrase after enough words; else 0."""
        if not self._is_first and self._waiting_ms >= _HURRY_MS:
            return 0
        words = self._clause.split()
        num_before = len(words) - 1
        opens = num_before >= _MIN_WORDS_BEFORE_PHRASE and _PHRASE_OPENER.fullmatch(words[-1])
        if not opens and num_before >= _MIN_WORDS_BEFORE_PREPOSITION:
            opens = _PREPOSITION.fullmatch(words[-1])
        return self._clause.rindex(words[-1]) if opens else 0


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
