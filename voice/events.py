"""The words that everything in `voice` shares: what happens in one turn, as a closed union.

Frozen dataclasses that import nothing of `voice`. Audio is mono float32 in [-1, 1] unless a name
says otherwise. Every event carries the number of the turn it belongs to: an interruption raises
the number, and whatever arrives late with an older one is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from llm.types import Usage

LISTEN_RATE_HZ = 16_000
"""Everything that listens (VAD, endpointing, ASR) works at this rate."""

Samples = NDArray[np.float32]
"""Mono audio, shape [n], in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long each stage of one turn took, in milliseconds; None where it did not run.

    first_commit_ms, llm_ms and first_audio_ms count from the end of the user's speech (the moment
    the pipeline got the whole utterance), so they include what ran before them.
    """

    audio_ms: float | None = None
    vad_ms: float | None = None
    asr_ms: float | None = None
    first_commit_ms: float | None = None
    llm_ms: float | None = None
    first_audio_ms: float | None = None
    total_ms: float = 0.0


class TurnOutcome(Enum):
    """How a turn ended."""

    ANSWERED = "answered"
    NO_SPEECH = "no_speech"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Heard:
    """The final transcript of what the user said."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class AnswerGuess:
    """The answer is taking shape: from character `start` on it may read `text`.

    revised is true where this withdraws text that was shown before.
    """

    turn: int
    start: int
    text: str
    revised: bool = False


@dataclass(frozen=True, slots=True)
class AnswerText:
    """Final text of the answer, to be appended."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Speech:
    """A piece of the spoken answer; clause is the text that it speaks.

    word_ends: for each word of the clause, the sample at which it has sounded; () if not known.
    """

    turn: int
    samples: Samples = field(repr=False)
    rate_hz: int
    clause: str
    word_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The last event of every turn, exactly one.

    usage is None where the language model did not run. error: one sentence, only when FAILED.
    """

    turn: int
    outcome: TurnOutcome
    times: StageTimes
    usage: Usage | None = None
    error: str | None = None


TurnEvent = Heard | AnswerGuess | AnswerText | Speech | TurnEnded
