"""Which words of an answer have been heard, when only its samples are counted.

A voice that knows how long each phoneme lasts (Piper does, from its duration predictor) tells
where each word ends; otherwise the words share the samples of their clause by their length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

INTERRUPTED = "\u2014"
"""Ends an answer in the history of which not every word was heard."""

# A digit is spoken as a word of about four phonemes: "1990" is thirteen of them.
_PHONEMES_PER_DIGIT = 4
_MAX_GROUPS_PER_WORD = 10
_UNEVEN_COST = 0.3


@dataclass(frozen=True, slots=True)
class WordSound:
    """Phonemes that are spoken as one word. end: samples of the clause up to its last one's end."""

    num_phonemes: int
    end: int


@dataclass(frozen=True, slots=True)
class SpokenClause:
    """A clause that was synthesised.

    text: as it is written in the answer. num_samples: how long it lasts, pauses included.
    word_ends: for each word of `text`, the sample at which it has sounded.
    """

    text: str
    num_samples: int
    word_ends: tuple[int, ...]

    @classmethod
    def of(
        cls, text: str, num_samples: int, sounds: Sequence[WordSound] | None = None
    ) -> SpokenClause:
        """Find the ends of the words. sounds: what the voice says of its words, if it does."""
        words = text.split()
        ends = shared_ends(words, num_samples) if not sounds else aligned_ends(words, sounds)
        return cls(text, num_samples, tuple(min(end, num_samples) for end in ends))


@dataclass(frozen=True, slots=True)
class HeardText:
    """What was heard of an answer. is_whole: whether that is every word."""

    text: str
    num_words: int
    is_whole: bool

    @property
    def for_history(self) -> str:
        """The text with a mark at its end if the answer was interrupted there."""
        return self.text if self.is_whole else f"{self.text}{INTERRUPTED}"


def heard_text(clauses: Sequence[SpokenClause], num_heard: int) -> HeardText:
    """The words of which more than half has been heard.

    clauses: in the order in which they sound. num_heard: samples of them that have been heard.
    """
    words: list[str] = []
    num_words, start = 0, 0
    for clause in clauses:
        begins = start
        for word, end in zip(clause.text.split(), clause.word_ends, strict=True):
            num_words += 1
            if num_heard > (begins + start + end) / 2:
                words.append(word)
            begins = start + end
        start += clause.num_samples
    return HeardText(" ".join(words), len(words), len(words) == num_words)


def shared_ends(words: Sequence[str], num_samples: int) -> list[int]:
    """Where words end if each lasts as long as it is spoken by guess."""
    weights = [spoken_length(word) + 1 for word in words]
    return [round(num_samples * sum_ / sum(weights)) for sum_ in accumulate(weights)]


def aligned_ends(words: Sequence[str], sounds: Sequence[WordSound]) -> list[int]:
    """Where words end that were spoken as `sounds`, one or more.

    A number may be several sounds, two small words one ("of the"), a lone sign none. The pairing
    in order whose lengths agree best is taken.
    """
    moves = _best_moves(words, sounds)
    ends: list[int] = []
    at = 0
    for num_words, num_sounds in moves:
        begins = sounds[at - 1].end if at else 0
        at += num_sounds
        ends_at = sounds[at - 1].end if at else 0
        weights = [spoken_length(word) + 1 for word in words[len(ends) : len(ends) + num_words]]
        ends += [
            begins + round((ends_at - begins) * sum_ / sum(weights)) for sum_ in accumulate(weights)
        ]
    return ends


def spoken_length(word: str) -> int:
    """About how many phonemes the word has, by its letters and digits."""
    num_digits = len(re.findall(r"\d", word))
    num_letters = sum(character.isalpha() for character in word)
    return num_letters + num_digits * _PHONEMES_PER_DIGIT


def _best_moves(words: Sequence[str], sounds: Sequence[WordSound]) -> list[tuple[int, int]]:
    """The cheapest way through both, as numbers of words and of sounds that belong together."""
    kinds = [(1, k) for k in range(_MAX_GROUPS_PER_WORD + 1)] + [(2, 1), (3, 1)]
    # When words are far fewer than sounds, or the reverse, the last one takes what is left.
    costs: dict[tuple[int, int], float] = {(0, 0): 0.0}
    came_by: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(len(words) + 1):
        for j in range(len(sounds) + 1):
            if (i, j) not in costs:
                continue
            for num_words, num_sounds in kinds:
                to = (i + num_words, j + num_sounds)
                if to[0] > len(words) or to[1] > len(sounds):
                    continue
                cost = costs[i, j] + _cost(words[i : to[0]], sounds[j : to[1]])
                if cost < costs.get(to, math.inf):
                    costs[to], came_by[to] = cost, (num_words, num_sounds)
    at = max((k for k in costs if k[0] == len(words)), key=lambda k: k[1])
    moves: list[tuple[int, int]] = []
    while at != (0, 0):
        move = came_by[at]
        moves.append(move)
        at = (at[0] - move[0], at[1] - move[1])
    return moves[::-1]


def _cost(words: Sequence[str], sounds: Sequence[WordSound]) -> float:
    expected = sum(map(spoken_length, words))
    spoken = sum(sound.num_phonemes for sound in sounds)
    is_even = len(words) == len(sounds)
    return abs(math.log((expected + 1) / (spoken + 1))) + (0.0 if is_even else _UNEVEN_COST)
