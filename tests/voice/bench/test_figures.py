from __future__ import annotations

import json
from io import StringIO

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from llm.bench.report import Report
from voice.bench import figures
from voice.bench.figures import SPEECH, Asked, Overlapped, word_errors


def asked(ttfa_ms: float | None, *, heard: str = "what is an ember", num_early: int = 0) -> Asked:
    return Asked("q", "What is an ember?", heard, 300.0, 50.0, ttfa_ms, num_early, 1.0)


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12).map(" ".join)


@settings(deadline=None)
@given(WORDS, WORDS)
def test_word_errors_are_those_of_a_library(said: str, heard: str) -> None:
    wrong, total = word_errors(said, heard)
    assert wrong / total == pytest.approx(jiwer.wer(said, heard))


def test_spelling_is_no_error() -> None:
    assert word_errors("Okay, I'll take two.", "ok I'll take 2") == (0, 4)


def test_who_is_cut_off_counts_once_and_in_one_place() -> None:
    observed = [asked(400.0), asked(-100.0, heard="what"), asked(None, heard=""), asked(500.0)]
    assert figures.cut_off_rate(observed) == 0.25
    assert figures.word_error_rate(observed) == pytest.approx(4 / 12)
    (row,) = figures.understanding_table({1: observed}).rows
    assert (row["unanswered"], row["false_cut_offs"]) == (1, 0.25)
    ttfa = next(r for r in figures.delays_table({1: observed}).rows if r["measure"] == "TTFA")
    assert (ttfa["turns"], ttfa["median_ms"]) == (2, 450.0)


def test_overlaps_by_kind() -> None:
    observed = [
        Overlapped(SPEECH, 250.0, went_on=False),
        Overlapped(SPEECH, 350.0, went_on=False),
        Overlapped("cough", None, went_on=True),
        Overlapped("cough", 260.0, went_on=True),
    ]
    speech, noise = figures.overlap_table(observed).rows
    assert (speech["median_stop_ms"], speech["went_on_rate"]) == (300.0, 0.0)
    assert (noise["stopped"], noise["went_on_rate"]) == (1, 1.0)
    found = {target.name: target for target in figures.targets({1: [asked(400.0)]}, observed)}
    assert found["barge-in stop, median ms"].met
    assert found["noises after which it goes on"].value == 1.0
    assert found["TTFA, one session, median ms"].value == 400.0


def test_the_whole_report_can_be_drawn_and_read_even_if_nobody_was_answered() -> None:
    for observed in ([asked(420.0), asked(-5.0)], [asked(None)], []):
        report = Report({"benchmark": "voice"})
        report.tables = [
            figures.delays_table({1: observed}),
            figures.understanding_table({1: observed}),
            figures.trade_off_table({"high": (observed, observed)}),
            figures.overlap_table([]),
        ]
        report.targets = figures.targets({1: observed}, [])
        report.draw(Console(file=StringIO()))
        assert json.loads(report.json_line())["benchmark"] == "voice"
