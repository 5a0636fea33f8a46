"""What the callers observed, as tables and targets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from llm.bench.report import Row, Table, Target, spread
from voice.transcript import words_of

SPEECH = "speech"
"""The kind of an overlap that is meant to interrupt."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as its caller saw it; milliseconds since the exact end of the speech.

    endpoint_ms: the turn was taken for good. ttft_ms: from the question's admission by the language
    model to its first final text. ttfa_ms: the first audible sample came; negative: into the
    caller's speech. None: never. heard: the words that the turn was taken with. num_early: how
    often the turn was taken before the end, and given back in silence. lag_ms: the latest that a
    frame was fed, which says whether the machine kept up.
    """

    name: str
    text: str
    heard: str
    endpoint_ms: float | None
    ttft_ms: float | None
    ttfa_ms: float | None
    num_early: int
    lag_ms: float

    @property
    def was_cut_off(self) -> bool:
        """Whether Ember began to speak before the caller had spoken."""
        return self.ttfa_ms is not None and self.ttfa_ms < 0


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A sound over an answer. kind: speech, or the noise that it was. stop_ms: from its start to
    the order to be silent; None: the answer went on. went_on: it sounds at the end, or again.
    """

    kind: str
    stop_ms: float | None
    went_on: bool


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """The least number of words to change, add or leave out, and the number of words said."""
    reference, found = words_of(said), words_of(heard)
    row = list(range(len(found) + 1))
    for i, word in enumerate(reference, 1):
        before, row = row, [i]
        for j, other in enumerate(found, 1):
            swapped = before[j - 1] + (word != other)
            row.append(min(before[j] + 1, row[j - 1] + 1, swapped))
    return row[-1], len(reference)


def word_error_rate(asked: Sequence[Asked]) -> float:
    """Wrong words of all that were said, where the caller was not cut off."""
    counts = [word_errors(a.text, a.heard) for a in asked if not a.was_cut_off]
    return sum(wrong for wrong, _ in counts) / max(1, sum(total for _, total in counts))


def cut_off_rate(asked: Sequence[Asked]) -> float:
    """The share of callers that were cut off."""
    return sum(a.was_cut_off for a in asked) / max(1, len(asked))


def delays_table(by_sessions: dict[int, list[Asked]]) -> Table:
    """Delays by the number of conversations that are held at once."""
    rows: list[Row] = []
    for sessions, asked in by_sessions.items():
        fair = [a for a in asked if not a.was_cut_off]
        for measure, values in (
            ("endpoint delay", _known(fair, lambda a: a.endpoint_ms)),
            ("TTFT", _known(fair, lambda a: a.ttft_ms)),
            ("TTFA", _known(fair, lambda a: a.ttfa_ms)),
            ("frames fed late", [a.lag_ms for a in asked]),
        ):
            if values:
                shares: Row = {"sessions": sessions, "measure": measure, "turns": len(values)}
                rows.append({**shares, **spread(values)})
    return Table("delays", "delays by conversations at once", rows)


def understanding_table(by_sessions: dict[int, list[Asked]]) -> Table:
    """Words and turns that went wrong."""
    rows: list[Row] = [
        {
            "sessions": sessions,
            "questions": len(asked),
            "wer": word_error_rate(asked),
            "false_cut_offs": cut_off_rate(asked),
            "taken_too_early": sum(a.num_early > 0 for a in asked) / max(1, len(asked)),
            "unanswered": sum(a.ttfa_ms is None and not a.was_cut_off for a in asked),
        }
        for sessions, asked in by_sessions.items()
    ]
    return Table("understanding", "what was understood", rows)


def trade_off_table(by_eagerness: dict[str, tuple[list[Asked], list[Asked]]]) -> Table:
    """TTFA of plain questions against false cut-offs of paused ones, by eagerness."""
    rows: list[Row] = []
    for eagerness, (plain, paused) in by_eagerness.items():
        times = _known(plain, lambda a: a.ttfa_ms)
        if times:
            row: Row = {"eagerness": eagerness, **spread(times, "ttfa_ms"), "paused": len(paused)}
            early = sum(a.num_early > 0 for a in paused) / max(1, len(paused))
            row |= {"false_cut_offs": cut_off_rate(paused), "taken_too_early": early}
            rows.append(row)
    return Table("trade_off", "first sound against false cut-offs in pauses of 0.3 to 0.9 s", rows)


def overlap_table(overlapped: Sequence[Overlapped]) -> Table:
    """What sounds over an answer do to it."""
    rows: list[Row] = []
    for kind in dict.fromkeys(o.kind for o in overlapped):
        these = [o for o in overlapped if o.kind == kind]
        row: Row = {"over_the_answer": kind, "times": len(these)}
        stops = [o.stop_ms for o in these if o.stop_ms is not None]
        row["stopped"] = len(stops)
        row["went_on_rate"] = sum(o.went_on for o in these) / len(these)
        row |= spread(stops, "stop_ms") if stops else {"median_stop_ms": "", "p95_stop_ms": ""}
        rows.append(row)
    return Table("overlap", "sounds over an answer", rows)


def targets(by_sessions: dict[int, list[Asked]], overlapped: Sequence[Overlapped]) -> list[Target]:
    """The bars: 500 ms to the first sound, 300 ms to silence, nine of ten noises ignored."""
    found: list[Target] = []
    alone = by_sessions.get(1, [])
    if ttfa := _known(alone, lambda a: None if a.was_cut_off else a.ttfa_ms):
        found.append(Target("TTFA, one session, median ms", median(ttfa), 500))
    if alone:
        found.append(Target("WER, one session", word_error_rate(alone), 0.1))
    speech = [o.stop_ms for o in overlapped if o.kind == SPEECH and o.stop_ms is not None]
    if speech:
        found.append(Target("barge-in stop, median ms", median(speech), 300))
    if noises := [o for o in overlapped if o.kind != SPEECH]:
        rate = sum(o.went_on for o in noises) / len(noises)
        found.append(Target("noises after which it goes on", rate, 0.9, at_most=False))
    return found


def _known(asked: Sequence[Asked], value: Callable[[Asked], float | None]) -> list[float]:
    return [found for a in asked if (found := value(a)) is not None]
