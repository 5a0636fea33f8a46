"""How long Ember waits, after the user fell silent, before it takes the turn.

Two opinions count: how complete the speech sounds (a probability from the endpoint model) and
whether its last words ask for more ("and", "um", half a telephone number). Pure: numbers in, a
wait out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

LONGEST_HOLD_MS = 3_000
"""Whoever has been silent for so long has spoken, whatever the opinions are."""

# The silence, from the last sample of speech, after which the turn is taken. Speech that sounds
# complete is released 200 ms after the soft end, which is heard at 96 ms.
# Pairs of a probability and a hold; between two of them it is a straight line.
_HOLDS_MS = ((0.0, 2_000), (0.2, 1_400), (0.5, 800), (0.8, 450), (0.95, 296))
_PERHAPS_UNFINISHED_HOLD_MS = 1_200
_UNFINISHED_HOLD_MS = 1_600
_HALF_NUMBER_HOLD_MS = 2_000

_CALMER = 1.2
_BOLDER = 0.96
_SCALES = (0.7, 1.8)

# Words after which a sentence goes on, whatever it is.
_ALWAYS_MORE = re.compile(
    r"an?|the|my|your|our|their|and|or|but|because|although|if|unless|u[hm]+m?|erm?|hmm|plus|into"
    r"|i|i'm|we|they|it's|that's|there's|let's|whose"
)
# Words that may end a question ("Who is it for?") or a sentence ("I think so."), but seldom do.
_PERHAPS_MORE = re.compile(
    r"about|as|at|by|for|from|is|are|was|were|of|so|than|to|until|what|when|where|which|while|who"
    r"|why|with|without|would|could|like"
)
_ASKS_FOR_DIGITS = re.compile(
    r"\b(?:phone|number|code|pin|zip|account|card|extension|call me at|dial|postcode|passcode)\b"
)
_DIGIT = re.compile(r"\d|zero|one|two|three|four|five|six|seven|eight|nine|oh")
_MIN_DICTATED_DIGITS = 7


class Eagerness(Enum):
    """How soon Ember takes the turn; AUTO learns it from the user's pauses."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    AUTO = "auto"


class TurnTaking(Enum):
    """Who decides that the user has spoken.

    SMART: the endpoint model and the words. SILENCE: a fixed silence. PUSH_TO_TALK: the client.
    """

    SMART = "smart"
    SILENCE = "silence"
    PUSH_TO_TALK = "push_to_talk"


_EAGERNESS_SCALES = {Eagerness.LOW: 1.6, Eagerness.HIGH: 0.7}


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """turn_taking, eagerness: see there. silence_ms: the silence of TurnTaking.SILENCE."""

    turn_taking: TurnTaking = TurnTaking.SMART
    eagerness: Eagerness = Eagerness.AUTO
    silence_ms: int = 700


ENDPOINTING = EndpointSettings()
"""As it is set where nothing is."""


class Endpointer:
    """Says how long to hold, and learns from what the user did then if it may (AUTO)."""

    def __init__(self, settings: EndpointSettings = ENDPOINTING) -> None:
        self._settings = settings
        self._scale = _EAGERNESS_SCALES.get(settings.eagerness, 1.0)

    def hold_ms(self, probability: float | None, text: str | None) -> int | None:
        """The silence after which the turn is taken; None: never, the client says when.

        probability: that the speech is complete, None while that is unknown. text: what was
        understood, None while that is unknown.
        """
        match self._settings.turn_taking:
            case TurnTaking.PUSH_TO_TALK:
                return None
            case TurnTaking.SILENCE:
                return self._settings.silence_ms
            case TurnTaking.SMART:
                if probability is None:
                    return LONGEST_HOLD_MS
                hold = _sound_hold_ms(probability)
                hold = max(hold, words_hold_ms(text or ""))
                return min(LONGEST_HOLD_MS, round(hold * self._scale))

    def was_too_soon(self) -> None:
        """The user went on just after the turn was taken."""
        self._learn(_CALMER)

    def was_right(self) -> None:
        """The user let Ember answer."""
        self._learn(_BOLDER)

    def _learn(self, factor: float) -> None:
        if self._settings.eagerness is Eagerness.AUTO:
            low, high = _SCALES
            self._scale = min(high, max(low, self._scale * factor))


def _sound_hold_ms(probability: float) -> float:
    """The silence after speech that sounds so complete."""
    for (low, long_ms), (high, short_ms) in pairwise(_HOLDS_MS):
        if probability < high:
            share = (probability - low) / (high - low)
            return long_ms + share * (short_ms - long_ms)
    return _HOLDS_MS[-1][1]


def words_hold_ms(text: str) -> int:
    """The least silence that these words ask for: long where they want to go on, else 0."""
    if is_half_a_number(text):
        return _HALF_NUMBER_HOLD_MS
    text = text.strip().lower()
    words = re.findall(r"[\w']+", text)
    if not words:
        return 0
    trails_off = text.endswith(("...", "\u2026", ",", "-", "\u2013", "\u2014", ":"))
    if trails_off or _ALWAYS_MORE.fullmatch(words[-1]):
        return _UNFINISHED_HOLD_MS
    if _PERHAPS_MORE.fullmatch(words[-1]) and not text.endswith("?"):
        return _PERHAPS_UNFINISHED_HOLD_MS
    return 0


def is_half_a_number(text: str) -> bool:
    """Whether the user dictates a number, such as that of a telephone, and has not ended it."""
    words = re.findall(r"[a-z]+|\d", text.lower())
    digits = 0
    while digits < len(words) and _DIGIT.fullmatch(words[-1 - digits]):
        digits += 1
    if digits == 0 or digits >= _MIN_DICTATED_DIGITS:
        return False
    if _ASKS_FOR_DIGITS.search(text.lower()) is None:
        return False
    # "Set it to number 4" ends with one digit and is complete.
    return digits > 1
