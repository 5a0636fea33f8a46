from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from llm.types import Usage
from voice import tracing
from voice.events import TurnOutcome
from voice.gateway.metrics import create_router
from voice.measures import Mark, MarkError, TurnRecord, TurnRecorder, stages_of
from voice.metrics import Metrics
from voice.waterfall import waterfall

MS = 16
SPEECH_END = 48_000
TIMES_MS = {
    Mark.SOFT_END: 96,
    Mark.TRANSCRIPT: 180,
    Mark.ADMITTED: 182,
    Mark.FIRST_COMMIT: 240,
    Mark.FIRST_CLAUSE: 260,
    Mark.FIRST_SYNTHESIS: 330,
    Mark.ENDPOINT: 296,
    Mark.FIRST_AUDIBLE: 331,
    Mark.LLM_DONE: 700,
}


def record(**extra_ms: int) -> TurnRecord:
    recorder = TurnRecorder("call-1", 7, SPEECH_END)
    for mark, ms in {**TIMES_MS, **{Mark[k]: v for k, v in extra_ms.items()}}.items():
        recorder.mark(mark, SPEECH_END + ms * MS)
    recorder.usage = Usage(30, 24, 10)
    recorder.num_words, recorder.num_words_heard = 20, 17
    recorder.num_answers_dropped = 1
    return recorder.finish(TurnOutcome.ANSWERED, SPEECH_END + 4_000 * MS)


def test_what_is_derived() -> None:
    found = record(BARGE_IN=1_500, STOPPED=1_750)
    assert found.endpoint_delay_ms == 296
    assert found.ttft_ms == 58
    assert found.ttfa_ms == 331
    assert found.barge_in_stop_ms == 250
    assert found.tokens_per_forward == 2.4
    assert found.num_words_unheard == 3
    assert found.marks[Mark.ENDED] == 4_000


def test_what_did_not_happen_is_none() -> None:
    silent = TurnRecorder("call-1", 1, 0).finish(TurnOutcome.NO_SPEECH, 160)
    assert silent.ttfa_ms is silent.ttft_ms is silent.barge_in_stop_ms is None
    assert silent.tokens_per_forward is None
    assert set(json.loads(silent.log_line())["marks_ms"]) == {"ended"}


def test_the_log_line_is_one_json_object_in_the_order_of_time() -> None:
    line = record().log_line()
    assert "\n" not in line
    content = json.loads(line)
    assert content["ttfa_ms"] == 331.0
    assert content["forwards"] == 10
    assert content["words_unheard"] == 3
    assert "barge_in_stop_ms" not in content
    assert list(content["marks_ms"].values()) == sorted(content["marks_ms"].values())


def test_what_happens_once_may_not_happen_twice() -> None:
    recorder = TurnRecorder("call-1", 1, 0)
    recorder.mark_first(Mark.FIRST_COMMIT, 10)
    recorder.mark_first(Mark.FIRST_COMMIT, 20)
    with pytest.raises(MarkError, match="first_commit twice in turn 1"):
        recorder.mark(Mark.FIRST_COMMIT, 30)
    assert recorder.finish(TurnOutcome.ANSWERED, 160).marks[Mark.FIRST_COMMIT] == 10 / MS


def test_stages_lie_between_their_marks() -> None:
    stages = {stage.name: (stage.start_ms, stage.end_ms) for stage in stages_of(record())}
    assert stages["transcript"] == (96, 180)
    assert stages["first text"] == (182, 240)
    assert stages["speaking"] == (331, 4_000)
    assert "stopping" not in stages


def test_prometheus_reads_what_was_observed() -> None:
    metrics = Metrics()
    metrics.observe(record(BARGE_IN=1_500, STOPPED=1_750))
    metrics.observe(TurnRecorder("call-1", 8, 0).finish(TurnOutcome.NO_SPEECH, 160))
    metrics.sessions.inc()
    app = FastAPI()
    app.include_router(create_router(metrics))
    with TestClient(app) as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert values["ember_turns_total", "answered"] == 1
    assert values["ember_turns_total", "no_speech"] == 1
    assert values["ember_time_to_first_audio_seconds_sum",] == pytest.approx(0.331)
    assert values["ember_time_to_first_audio_seconds_count",] == 1
    assert values["ember_time_to_first_audio_seconds_bucket", "0.3"] == 0
    assert values["ember_time_to_first_audio_seconds_bucket", "0.35"] == 1
    assert values["ember_barge_in_stop_seconds_sum",] == pytest.approx(0.25)
    assert values["ember_words_unheard_total",] == 3
    assert values["ember_sessions",] == 1
    assert Metrics().text() != metrics.text(), "each has its own registry"


class FakeSpan:
    def __init__(self, name: str, start_ns: int, parent: object) -> None:
        self.name, self.start_ns, self.parent, self.end_ns = name, start_ns, parent, 0

    def end(self, end_ns: int) -> None:
        self.end_ns = end_ns


class FakeTrace:
    """The few functions of opentelemetry.trace that are used."""

    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []
        self.attributes: dict[str, object] = {}

    def get_tracer(self, name: str) -> FakeTrace:
        return self

    def set_span_in_context(self, span: FakeSpan) -> FakeSpan:
        return span

    def start_span(
        self,
        name: str,
        *,
        start_time: int,
        context: object = None,
        attributes: dict[str, object] | None = None,
    ) -> FakeSpan:
        self.attributes |= attributes or {}
        self.spans.append(FakeSpan(name, start_time, context))
        return self.spans[-1]


def test_spans_nest_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrace()
    monkeypatch.setattr(tracing, "_HAS_TRACER", True)
    monkeypatch.setattr(tracing, "trace", fake, raising=False)
    tracing.trace_turn(record(), 1_000_000_000)
    turn, *stages = fake.spans
    assert turn.name == "turn"
    assert (turn.start_ns, turn.end_ns) == (1_000_000_000, 5_000_000_000)
    assert {span.parent for span in stages} == {turn}
    first_text = next(span for span in stages if span.name == "first text")
    assert (first_text.start_ns, first_text.end_ns) == (1_182_000_000, 1_240_000_000)
    assert fake.attributes["ember.ttfa_ms"] == 331
    assert fake.attributes["gen_ai.usage.output_tokens"] == 24


def test_without_opentelemetry_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_HAS_TRACER", False)
    monkeypatch.delattr(tracing, "trace", raising=False)
    tracing.trace_turn(record(), 0)


def test_the_real_interface_takes_the_spans() -> None:
    pytest.importorskip("opentelemetry.trace")
    assert "opentelemetry" in sys.modules
    tracing.trace_turn(record(), 1_000_000_000)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(Mark), st.integers(-200, 90_000)))
def test_the_waterfall_is_a_picture_whatever_happened(times_ms: dict[Mark, int]) -> None:
    recorder = TurnRecorder("<call & 1>", 3, 0)
    for mark, ms in times_ms.items():
        recorder.mark(mark, ms * MS)
    picture = ElementTree.fromstring(waterfall(recorder.finish(TurnOutcome.CANCELLED, 100)))
    bars = picture.findall("{*}rect")[1:]
    for bar in bars:
        assert float(bar.attrib["x"]) >= 110
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= 110 + 620 + 1
    assert "<call & 1>" in (picture.findtext("{*}text") or "")


def test_the_waterfall_names_its_stages_and_the_first_sound() -> None:
    picture = waterfall(record())
    assert "first sound after 331 ms" in picture
    for name in ("transcript", "endpoint", "first text", "hold", "speaking"):
        assert f">{name}<" in picture
