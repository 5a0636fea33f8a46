"""The times and counts of one turn, from the end of the user's speech to the last sound.

Pure: marks go in as they happen, one record comes out, which is a line in the log, values for the
histograms (`voice.metrics`), spans (`voice.tracing`) and a picture (`voice.waterfall`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

from llm.types import Usage
from voice.events import LISTEN_RATE_HZ, TurnOutcome


class Mark(Enum):
    """What happens once in a turn, in the usual order. The value is its name in the log."""

    SOFT_END = "soft_end"
    """The detector heard the first silence after the speech."""
    TRANSCRIPT = "transcript"
    """What the user said is known for good."""
    ADMITTED = "llm_admitted"
    """The language model has the question."""
    FIRST_COMMIT = "first_commit"
    """The first final text of the answer."""
    FIRST_CLAUSE = "first_clause"
    """The first text that the voice can speak."""
    FIRST_SYNTHESIS = "first_synthesis"
    """The first sound is made."""
    ENDPOINT = "endpoint"
    """The turn was taken to be over, and the answer released."""
    FIRST_AUDIBLE = "first_audible"
    """The first sample that can be heard leaves the server."""
    LLM_DONE = "llm_done"
    """The text of the answer is whole."""
    BARGE_IN = "barge_in"
    """The user began to speak over the answer, which then stopped."""
    STOPPED = "stopped"
    """Because of that the last sample left."""
    ENDED = "ended"
    """All that will be heard has been heard."""


class MarkError(RuntimeError):
    """Something that happens once happened twice: a mistake of ours."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn. marks: milliseconds since the acoustic end of the user's speech; a speculative
    answer may be admitted before the soft end is sure, and even before 0.

    num_answers_dropped: answers that were begun for this turn and thrown away, because the user
    went on. num_words_unheard: words of the answer that were made and not heard.
    """

    session: str
    turn: int
    outcome: TurnOutcome
    marks: dict[Mark, float]
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    num_forwards: int = 0
    num_answers_dropped: int = 0
    num_words: int = 0
    num_words_unheard: int = 0

    def between(self, start: Mark, end: Mark) -> float | None:
        """Milliseconds from one mark to another; None where one is missing."""
        if start not in self.marks or end not in self.marks:
            return None
        return self.marks[end] - self.marks[start]

    @property
    def endpoint_delay_ms(self) -> float | None:
        """From the end of speech to the decision that the turn is over."""
        return self.marks.get(Mark.ENDPOINT)

    @property
    def ttft_ms(self) -> float | None:
        """From the admission of the question to the first final text (TTFT)."""
        return self.between(Mark.ADMITTED, Mark.FIRST_COMMIT)

    @property
    def ttfa_ms(self) -> float | None:
        """From the end of speech to the first audible sample (TTFA)."""
        return self.marks.get(Mark.FIRST_AUDIBLE)

    @property
    def barge_in_stop_ms(self) -> float | None:
        """From the first sample of an interruption to the last one of the answer."""
        return self.between(Mark.BARGE_IN, Mark.STOPPED)

    @property
    def tokens_per_forward(self) -> float | None:
        """Tokens committed for each forward (TPF); None where there was none."""
        return self.num_tokens / self.num_forwards if self.num_forwards else None

    def log_line(self) -> str:
        """The record as one JSON object without line breaks; times in milliseconds."""
        derived = {
            "endpoint_delay_ms": self.endpoint_delay_ms,
            "ttft_ms": self.ttft_ms,
            "ttfa_ms": self.ttfa_ms,
            "barge_in_stop_ms": self.barge_in_stop_ms,
        }
        content = {
            "session": self.session,
            "turn": self.turn,
            "outcome": self.outcome.value,
            **{name: round(ms, 1) for name, ms in derived.items() if ms is not None},
            "marks_ms": {mark.value: round(self.marks[mark], 1) for mark in self._in_order()},
            "prompt_tokens": self.num_prompt_tokens,
            "tokens": self.num_tokens,
            "forwards": self.num_forwards,
            "answers_dropped": self.num_answers_dropped,
            "words": self.num_words,
            "words_unheard": self.num_words_unheard,
        }
        return json.dumps(content)

    def _in_order(self) -> list[Mark]:
        return sorted(self.marks, key=self.marks.__getitem__)


@dataclass(slots=True)
class TurnRecorder:
    """Collects a turn. Positions are samples of the call at LISTEN_RATE_HZ.

    session: the call it belongs to. speech_end: the last sample at which the user spoke.
    """

    session: str
    turn: int
    speech_end: int
    num_answers_dropped: int = 0
    num_words: int = 0
    num_words_heard: int = 0
    usage: Usage | None = None
    _marks: dict[Mark, int] = field(default_factory=dict)

    def mark(self, mark: Mark, at: int) -> None:
        """It happened at this sample. Raises MarkError the second time."""
        if mark in self._marks:
            raise MarkError(f"{mark.value} twice in turn {self.turn}")
        self._marks[mark] = at

    def mark_first(self, mark: Mark, at: int) -> None:
        """It happened at this sample; only the first time counts."""
        self._marks.setdefault(mark, at)

    def finish(self, outcome: TurnOutcome, at: int) -> TurnRecord:
        """The turn is over."""
        self.mark_first(Mark.ENDED, at)
        usage = self.usage or Usage()
        return TurnRecord(
            session=self.session,
            turn=self.turn,
            outcome=outcome,
            marks={
                mark: (position - self.speech_end) * 1_000 / LISTEN_RATE_HZ
                for mark, position in self._marks.items()
            },
            num_prompt_tokens=usage.num_prompt_tokens,
            num_tokens=usage.num_completion_tokens,
            num_forwards=usage.num_forwards,
            num_answers_dropped=self.num_answers_dropped,
            num_words=self.num_words,
            num_words_unheard=max(0, self.num_words - self.num_words_heard),
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of a turn, in milliseconds since the end of the user's speech."""

    name: str
    start_ms: float
    end_ms: float


_STAGES = (
    ("soft end", None, Mark.SOFT_END),
    ("transcript", Mark.SOFT_END, Mark.TRANSCRIPT),
    ("endpoint", None, Mark.ENDPOINT),
    ("first text", Mark.ADMITTED, Mark.FIRST_COMMIT),
    ("answer text", Mark.FIRST_COMMIT, Mark.LLM_DONE),
    ("first clause", Mark.FIRST_COMMIT, Mark.FIRST_CLAUSE),
    ("first sound", Mark.FIRST_CLAUSE, Mark.FIRST_SYNTHESIS),
    ("hold", Mark.FIRST_SYNTHESIS, Mark.FIRST_AUDIBLE),
    ("speaking", Mark.FIRST_AUDIBLE, Mark.ENDED),
    ("stopping", Mark.BARGE_IN, Mark.STOPPED),
)


def stages_of(record: TurnRecord) -> list[Stage]:
    """What took how long, as far as it is known; the end of the speech is 0."""
    stages = []
    for name, begins, ends in _STAGES:
        start = 0.0 if begins is None else record.marks.get(begins)
        end = record.marks.get(ends)
        if start is not None and end is not None and end >= start:
            stages.append(Stage(name, start, end))
    return stages
