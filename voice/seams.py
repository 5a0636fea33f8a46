"""The edges of synthesised clauses: silence trimmed, no click, a pause as long as the text asks."""

from __future__ import annotations

import numpy as np

from voice.events import Samples

_AUDIBLE = 0.02
_LEAD_MS = 10
_TAIL_MS = 20
_EDGE_MS = 4

# Piper leaves 160 ms after a phrase that ends in the middle of a sentence and 200 to 320 ms after
# a comma or a full stop. Between two words of one phrase nobody pauses.
_PAUSES_MS = {",": 120, ";": 180, ":": 180, "\u2014": 140, "\u2013": 140}
_SENTENCE_PAUSE_MS = 200
_PHRASE_PAUSE_MS = 40
_SENTENCE_ENDS = ".!?\u2026"
_CLOSERS = "\"'\u201d\u2019\u00bb)]}*_`"


def lead_of(samples: Samples, rate_hz: int) -> int:
    """How many samples of silence come first, but for the 10 ms in which sound rises.

    Piper begins each sentence with about 65 ms of silence, which the listener would wait for.
    All of them where nothing is audible.
    """
    audible = np.flatnonzero(np.abs(samples) > _AUDIBLE)
    if audible.size == 0:
        return len(samples)
    return max(0, int(audible[0]) - _LEAD_MS * rate_hz // 1_000)


def finish_clause(samples: Samples, rate_hz: int, clause: str) -> Samples:
    """Give a clause its end: the pause that its last character asks for, and edges at zero.

    samples: float32 [n] of the whole clause. clause: its text. Returns float32 [m].
    """
    audible = np.flatnonzero(np.abs(samples) > _AUDIBLE)
    if audible.size == 0:
        return samples[:0]
    last = min(len(samples), int(audible[-1]) + 1 + _TAIL_MS * rate_hz // 1_000)
    sound = soft_edges(samples[:last], rate_hz)
    return np.pad(sound, (0, pause_ms(clause) * rate_hz // 1_000))


def soft_edges(samples: Samples, rate_hz: int) -> Samples:
    """Let the first and last 4 ms rise from and fall to zero, so that no seam clicks."""
    length = min(_EDGE_MS * rate_hz // 1_000, len(samples) // 2)
    rise = cosine_rise(length)
    shaped = samples.copy()
    shaped[:length] *= rise
    shaped[len(samples) - length :] *= rise[::-1]
    return shaped


def cosine_rise(length: int) -> Samples:
    """Half a cosine from nearly 0 to nearly 1, float32 [length]; reversed it falls."""
    return (0.5 - 0.5 * np.cos(np.pi * (np.arange(length) + 0.5) / max(1, length))).astype(
        np.float32
    )


def pause_ms(clause: str) -> int:
    """The silence that belongs between this clause and the next."""
    end = clause.rstrip().rstrip(_CLOSERS)[-1:]
    if end in _SENTENCE_ENDS and end:
        return _SENTENCE_PAUSE_MS
    return _PAUSES_MS.get(end, _PHRASE_PAUSE_MS)
