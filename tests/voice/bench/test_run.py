"""Callers against a pipeline without models. Time is real here: it is what is measured."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.voice.session_fakes import HEARD, FakePipeline
from voice.bench import run
from voice.bench.corpus import Recording, place
from voice.bench.figures import Asked, Overlapped
from voice.endpoint import ENDPOINTING
from voice.events import Samples


def recording(duration_s: float = 0.4) -> Recording:
    times = np.arange(int(duration_s * 16_000)) / 16_000
    speech = (0.3 * np.sin(2 * np.pi * 300 * times)).astype(np.float32)
    return place("q", HEARD, [speech], 0, np.random.default_rng(0))


def ask(pipeline: FakePipeline, over: Samples | None = None) -> tuple[Asked, Overlapped | None]:
    async def main() -> tuple[Asked, Overlapped | None]:
        caller, ttft_ms = await run._ask(pipeline, ENDPOINTING, recording(), over)
        return caller.asked(ttft_ms), caller.overlapped("speech")

    return asyncio.run(main())


def test_a_question_is_timed_from_the_exact_end_of_the_speech() -> None:
    found, overlapped = ask(FakePipeline())
    assert found.heard == HEARD
    assert found.endpoint_ms is not None and found.ttfa_ms is not None
    # The hold of speech that surely is complete; a busy machine may add to it, never take away.
    assert 250 < found.endpoint_ms < 1_500
    assert found.ttfa_ms >= found.endpoint_ms
    assert found.ttft_ms is not None
    assert not found.was_cut_off
    assert overlapped is None


def test_who_gets_no_answer_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE_S", 0.8)
    pipeline = FakePipeline()
    pipeline.recogniser.texts = [""] * 50
    found, _ = ask(pipeline)
    assert (found.heard, found.ttfa_ms, found.endpoint_ms) == ("", None, None)


def test_each_recording_is_asked_once_by_several_callers() -> None:
    recordings = [recording(0.3), recording(0.4), recording(0.5)]
    pipeline = FakePipeline()
    found = asyncio.run(run._ask_all(pipeline, ENDPOINTING, recordings, 2))
    assert len(found) == 3
    assert all(asked.ttfa_ms is not None for asked in found)
    assert pipeline.num_running == 0


def test_what_sounds_over_an_answer_begins_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "OVERLAP_AFTER_S", 0.2)
    monkeypatch.setattr(run, "OVERLAP_WATCHED_S", 1.0)
    times = np.arange(16_000) / 16_000
    loud = (0.3 * np.sin(2 * np.pi * 500 * times)).astype(np.float32)
    pipeline = FakePipeline(spoken_s=6.0, holds=True)
    _, overlapped = ask(pipeline, loud)
    assert overlapped is not None
    assert overlapped.stop_ms is not None
    assert 150 < overlapped.stop_ms < 900
    assert not overlapped.went_on
    _, quiet = ask(FakePipeline(spoken_s=6.0, holds=True), np.zeros(16_000, np.float32))
    assert quiet == Overlapped("speech", None, went_on=True)
