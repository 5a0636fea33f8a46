from __future__ import annotations

import numpy as np
import pytest

from voice.seams import finish_clause, lead_of, pause_ms, soft_edges

RATE_HZ = 1_000


def test_silence_at_the_start_is_found_but_for_10_ms() -> None:
    samples = np.concatenate((np.full(80, 0.01), np.full(50, 0.5), np.zeros(40)))
    assert lead_of(samples.astype(np.float32), RATE_HZ) == 70
    assert lead_of(np.full(50, -0.5, np.float32), RATE_HZ) == 0


def test_what_cannot_be_heard_is_nothing() -> None:
    samples = np.full(50, 0.01, np.float32)
    assert lead_of(samples, RATE_HZ) == 50
    assert finish_clause(samples, RATE_HZ, "Yes.").size == 0


@pytest.mark.parametrize(
    ("clause", "expected_ms"),
    [
        ("It is Paris.", 200),
        ("Is it?", 200),
        ("He said \u201cgo.\u201d", 200),
        ("Of course,", 120),
        ("three things:", 180),
        ("The sky is blue", 40),
        ("", 40),
    ],
)
def test_the_pause_is_what_the_text_asks_for(clause: str, expected_ms: int) -> None:
    assert pause_ms(clause) == expected_ms
    samples = np.concatenate((np.full(100, 0.5), np.zeros(400))).astype(np.float32)
    finished = finish_clause(samples, RATE_HZ, clause)
    assert len(finished) == 100 + 20 + expected_ms
    assert not finished[120:].any()


def test_two_clauses_meet_without_a_click() -> None:
    rate_hz = 22_050
    tone = np.sin(np.arange(4_000) * 2 * np.pi * 200 / rate_hz + 1.3).astype(np.float32) * 0.5
    joined = np.concatenate([finish_clause(tone, rate_hz, "one"), soft_edges(tone, rate_hz)])
    # A 200 Hz tone of this level moves by 0.029 a sample at most; a cut one would jump by 0.48.
    assert np.abs(np.diff(joined)).max() < 0.035
    assert abs(joined[0]) < 0.01
    assert np.abs(tone).max() > 0.49, "the input is not touched"


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_edges_of_very_short_sounds(length: int) -> None:
    assert len(soft_edges(np.ones(length, np.float32), RATE_HZ)) == length
