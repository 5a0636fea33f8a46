"""What Whisper says although nobody did: phrases of its training data, loops, and guesses."""

from __future__ import annotations

import re

from voice.transcript import words_of

# Above this probability of no speech, and with words below this mean log probability, Whisper is
# making words up (thresholds of the Whisper paper, arXiv 2212.04356, section 4.5).
NO_SPEECH_PROBABILITY = 0.6
MIN_MEAN_LOG_PROBABILITY = -1.0

# Below these a phantom phrase is not believed: people do say "thank you", and then clearly.
_PHANTOM_NO_SPEECH_PROBABILITY = 0.2
_PHANTOM_LOG_PROBABILITY = -0.5

_NEVER_MEANT = frozenset(
    words_of(text)
    for text in (
        "Thank you for watching",
        "Thanks for watching",
        "Thank you so much for watching",
        "Thank you very much for watching",
        "Thanks for watching and see you next time",
        "Please subscribe",
        "Please subscribe to my channel",
        "Don't forget to subscribe",
        "Like and subscribe",
        "See you in the next video",
        "I'll see you in the next video",
        "Subtitles by the Amara.org community",
        "Transcribed by https://otter.ai",
        "Transcription by CastingWords",
    )
)
_SELDOM_MEANT = frozenset(
    words_of(text) for text in ("Thank you", "Thank you very much", "You", "Bye", "Bye bye", "So")
)

_STAGE_DIRECTION = re.compile(r"\[[^\]]*\]\.?|\([^)]*\)\.?|[\s\u266a\u266b.]+")
"""As in "[BLANK_AUDIO]", "(music)" and notes."""

_MOST_REPETITIONS = 3
_LONGEST_LOOP = 8


def is_made_up(no_speech_probability: float, mean_log_probability: float) -> bool:
    """Whether Whisper most likely invented the words: nobody spoke, and it is unsure of them."""
    return (
        no_speech_probability > NO_SPEECH_PROBABILITY
        and mean_log_probability < MIN_MEAN_LOG_PROBABILITY
    )


def is_phantom(text: str, no_speech_probability: float, mean_log_probability: float) -> bool:
    """Whether the text is one that Whisper is known to invent in noise and near silence."""
    words = words_of(text)
    if words in _NEVER_MEANT or _STAGE_DIRECTION.fullmatch(text):
        return True
    is_unsure = (
        no_speech_probability > _PHANTOM_NO_SPEECH_PROBABILITY
        or mean_log_probability < _PHANTOM_LOG_PROBABILITY
    )
    return words in _SELDOM_MEANT and is_unsure


def cut_loops(text: str) -> str:
    """Cut a phrase of up to eight words that is said more than three times in a row to once."""
    words = text.split()
    position = 0
    while position < len(words):
        for size in range(1, min(_LONGEST_LOOP, len(words) - position) + 1):
            repeats = _count_repeats(words, position, size)
            if repeats > _MOST_REPETITIONS:
                del words[position + size : position + size * repeats]
                break
        position += 1
    return " ".join(words)


def _count_repeats(words: list[str], start: int, size: int) -> int:
    """How often the `size` words from `start` on are said in a row."""
    phrase = words_of(" ".join(words[start : start + size]))
    if all(word.isdigit() for word in phrase):
        return 1  # "5 5 5 5" is how a number is dictated
    repeats = 1
    while True:
        begin = start + repeats * size
        following = words[begin : begin + size]
        if len(following) < size or words_of(" ".join(following)) != phrase:
            return repeats
        repeats += 1
