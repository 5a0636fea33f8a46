"""What to transcribe, and when, while the user speaks. Pure: positions in, jobs and texts out.

Whisper hears whole pieces of audio, so a stream is transcribed again and again from its beginning:
one job at a time, each about all audio that there is when it starts. As soon as a silence begins,
before it is long enough for a soft end, one more job starts; if the silence lasts, that job has
heard all the speech, and its text is final without decoding again.
"""

from __future__ import annotations

from dataclasses import dataclass

from voice.agreement import Agreement
from voice.events import LISTEN_RATE_HZ

PARTIAL_INTERVAL_MS = 250
"""How much new audio makes it worth while to transcribe all of it again."""

# Soft consonants begin before the detector is sure of speech.
_PADDING_SAMPLES = LISTEN_RATE_HZ // 5
# A phrase of at least this length that ended with a pause stays as it was understood, so that the
# work does not grow with the length of the utterance.
_PHRASE_SAMPLES = 6 * LISTEN_RATE_HZ


@dataclass(frozen=True, slots=True)
class Job:
    """Transcribe the samples from start up to end; phrase: which phrase of the call it is about."""

    phrase: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PartialText:
    """What was said so far. agreed: what will not change; newest: the latest hypothesis."""

    agreed: str
    newest: str


@dataclass(frozen=True, slots=True)
class FinalText:
    """All that was said up to the pause at `end`."""

    end: int
    text: str


class StreamingAsr:
    """Plans the jobs of one call. Whoever runs them tells `finished`, failed ones with ""."""

    def __init__(self, interval_ms: int = PARTIAL_INTERVAL_MS) -> None:
        self._interval = interval_ms * LISTEN_RATE_HZ // 1_000
        self._running: Job | None = None
        self._phrase = 0
        self._start = self._heard_to = 0
        self._before = ""
        self._pause: int | None = None
        self._final: FinalText | None = None
        self._newest: tuple[Job, str] | None = None
        self._agreement = Agreement()
        self.num_reused = 0
        """Final texts that needed no job after the soft end was known."""

    def began(self, start: int) -> None:
        """A new utterance begins."""
        self._begin(max(0, start - _PADDING_SAMPLES), "")
        self._heard_to = start

    def resumed(self) -> None:
        """The user goes on after a pause in the same utterance."""
        final = self._final
        self._final = self._pause = self._newest = None
        if final is not None and final.end - self._start >= _PHRASE_SAMPLES:
            self._begin(final.end, final.text)

    def hear(self, now: int, *, new_silence: int | None) -> Job | None:
        """More audio is there while the user speaks; a job if it is time for one.

        new_silence: where a silence began that is one window long, which may be the end.
        """
        is_due = now - self._heard_to >= self._interval
        if new_silence is not None:
            is_due = self._heard_to < new_silence
        return self._job(now) if is_due else None

    def paused(self, end: int, now: int) -> tuple[FinalText | None, Job | None]:
        """The soft end: the text if it is known already, else perhaps a job to be done."""
        self._pause = end
        if self._newest is not None and self._newest[0].end >= end:
            self.num_reused += 1
            return self._finish(self._newest[1]), None
        if self._running is not None and self._running.phrase == self._phrase:
            if self._running.end >= end:
                self.num_reused += 1
            return None, None
        return None, self._job(now)

    def finished(
        self, job: Job, text: str, now: int
    ) -> tuple[PartialText | FinalText | None, Job | None]:
        """A job is done: what is known now, and the next job if one is needed at once."""
        assert job == self._running, (job, self._running)
        self._running = None
        if job.phrase != self._phrase:
            return None, self._job(now) if self._is_owed else None
        self._newest = job, text
        if self._is_owed and self._pause is not None:
            if job.end >= self._pause:
                return self._finish(text), None
            return None, self._job(now)
        agreed = _join(self._before, self._agreement.feed(text))
        return PartialText(agreed, _join(self._before, text)), None

    @property
    def _is_owed(self) -> bool:
        """Whether somebody waits for the final text."""
        return self._pause is not None and self._final is None

    def _begin(self, start: int, before: str) -> None:
        self._phrase += 1
        self._start = start
        self._before = before
        self._heard_to = start
        self._final = self._pause = self._newest = None
        self._agreement = Agreement()

    def _job(self, now: int) -> Job | None:
        if self._running is not None or now <= self._heard_to:
            return None
        self._heard_to = now
        self._running = Job(self._phrase, self._start, now)
        return self._running

    def _finish(self, text: str) -> FinalText:
        assert self._pause is not None
        self._final = FinalText(self._pause, _join(self._before, text))
        return self._final


def _join(before: str, text: str) -> str:
    return f"{before} {text}".strip()
