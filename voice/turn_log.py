"""Keeps the times of the turn under way, for the record that is made when it ends. Pure."""

from __future__ import annotations

from voice.barge_in import BargeInAction
from voice.events import LISTEN_RATE_HZ, AnswerText, Speech, TurnEnded, TurnEvent, TurnOutcome
from voice.measures import Mark, TurnRecord, TurnRecorder


class TurnLog:
    """Takes notes in one conversation. session: its name in the records."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._heard: dict[Mark, int] = {}
        self._made: dict[Mark, int] = {}
        self._num_dropped = 0
        self._recorder: TurnRecorder | None = None
        self._outcome = TurnOutcome.CANCELLED

    def paused(self, now: int) -> None:
        """The soft end was noticed."""
        self._heard = {Mark.SOFT_END: now}

    def understood(self, now: int) -> None:
        """The transcript is final."""
        self._heard[Mark.TRANSCRIPT] = now

    def admitted(self, now: int) -> None:
        """An answer is begun."""
        self._made = {Mark.ADMITTED: now}

    def dropped(self) -> None:
        """An answer that was begun was thrown away."""
        self._num_dropped += 1

    def made(self, event: TurnEvent, now: int) -> None:
        """Something of the answer that was begun last was made, whether it may leave or not."""
        marks = self._made if self._recorder is None else {}
        match event:
            case AnswerText():
                marks.setdefault(Mark.FIRST_COMMIT, now)
            case Speech():
                marks.setdefault(Mark.FIRST_SYNTHESIS, now)
            case TurnEnded(_, _, times) if times.llm_ms is not None and Mark.ADMITTED in self._made:
                llm_samples = int(times.llm_ms * LISTEN_RATE_HZ / 1_000)
                marks.setdefault(Mark.LLM_DONE, self._made[Mark.ADMITTED] + llm_samples)
            case _:
                return
        self._mark(marks)

    def released(self, turn: int, speech_end: int, now: int) -> None:
        """The turn was taken."""
        self._recorder = TurnRecorder(self._session, turn, speech_end, self._num_dropped)
        self._num_dropped = 0
        self._outcome = TurnOutcome.CANCELLED
        self._mark({**self._heard, **self._made, Mark.ENDPOINT: now})

    def left(self, event: TurnEvent, now: int) -> None:
        """Something of the released answer left."""
        if self._recorder is None:
            return
        match event:
            case Speech(_, _, _, clause):
                self._recorder.mark_first(Mark.FIRST_AUDIBLE, now)
                self._recorder.num_words += len(clause.split())
            case TurnEnded(_, outcome, _, usage):
                self._outcome = outcome
                self._recorder.usage = usage
            case _:
                return

    def shaped(self, action: BargeInAction, speech_start: int, now: int) -> None:
        """The answer became softer or silent because of speech that began at speech_start."""
        if self._recorder is None:
            return
        if action in {BargeInAction.PAUSE, BargeInAction.INTERRUPT}:
            self._recorder.mark_first(Mark.BARGE_IN, speech_start)
            self._recorder.mark_first(Mark.STOPPED, now)

    def ended(self, now: int, *, num_words_heard: int) -> TurnRecord | None:
        """The released answer is over; its record."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return None
        recorder.num_words_heard = num_words_heard
        return recorder.finish(self._outcome, now)

    def _mark(self, marks: dict[Mark, int]) -> None:
        if self._recorder is not None:
            for mark, at in marks.items():
                self._recorder.mark_first(mark, at)
