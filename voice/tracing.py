"""Turns as OpenTelemetry spans, where opentelemetry-api is installed; otherwise nothing happens.

The spans go wherever the process's tracer provider sends them; Ember sets none up.
"""

from __future__ import annotations

from voice.measures import TurnRecord, stages_of

try:
    from opentelemetry import trace
except ImportError:
    _HAS_TRACER = False
else:
    _HAS_TRACER = True

_NS_PER_MS = 1_000_000


def trace_turn(record: TurnRecord, speech_end_ns: int) -> None:
    """Give the tracer one span for the turn and one in it for each stage.

    speech_end_ns: the wall-clock time of the end of the user's speech, nanoseconds since 1970.
    """
    if not _HAS_TRACER:
        return
    stages = stages_of(record)
    ends = [stage.end_ms for stage in stages] + [*record.marks.values(), 0.0]
    tracer = trace.get_tracer("ember")
    turn = tracer.start_span("turn", start_time=speech_end_ns, attributes=_attributes(record))
    context = trace.set_span_in_context(turn)
    for stage in stages:
        start_ns = speech_end_ns + int(stage.start_ms * _NS_PER_MS)
        span = tracer.start_span(stage.name, context=context, start_time=start_ns)
        span.end(speech_end_ns + int(stage.end_ms * _NS_PER_MS))
    turn.end(speech_end_ns + int(max(ends) * _NS_PER_MS))


def _attributes(record: TurnRecord) -> dict[str, str | int | float]:
    times_ms = {
        "ember.endpoint_delay_ms": record.endpoint_delay_ms,
        "ember.ttft_ms": record.ttft_ms,
        "ember.ttfa_ms": record.ttfa_ms,
        "ember.barge_in_stop_ms": record.barge_in_stop_ms,
    }
    return {
        "session.id": record.session,
        "ember.turn": record.turn,
        "ember.outcome": record.outcome.value,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_tokens,
        "ember.forwards": record.num_forwards,
        "ember.answers_dropped": record.num_answers_dropped,
        "ember.words_unheard": record.num_words_unheard,
        **{name: ms for name, ms in times_ms.items() if ms is not None},
    }
