"""What a server has done, for Prometheus: histograms of the turns, in seconds as it wants them."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as _text_of

from voice.measures import TurnRecord

_DELAYS_S = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.65, 0.8, 1.0, 1.5, 2.5, 5.0)
_STOPS_S = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 1.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one process, in a registry of their own, so that there may be several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sessions = Gauge("ember_sessions", "Open conversations.", registry=self.registry)
        self._turns = self._counter("ember_turns", "Turns that ended.", ("outcome",))
        self._words = self._counter("ember_words", "Words of answers that were spoken.")
        self._unheard = self._counter(
            "ember_words_unheard", "Words that were spoken and not heard, since interrupted."
        )
        self._dropped = self._counter(
            "ember_answers_dropped", "Answers begun early and thrown away as the user went on."
        )
        self._endpoint = self._delay(
            "ember_endpoint_delay_seconds", "End of speech to the end of the turn."
        )
        self._ttft = self._delay(
            "ember_time_to_first_text_seconds", "Question admitted to the first final text (TTFT)."
        )
        self._ttfa = self._delay(
            "ember_time_to_first_audio_seconds", "End of speech to the first audible sample (TTFA)."
        )
        self._stop = self._histogram(
            "ember_barge_in_stop_seconds", "Start of an interruption to silence.", _STOPS_S
        )
        self._tokens = self._histogram("ember_answer_tokens", "Tokens of an answer.", _COUNTS)
        self._forwards = self._histogram(
            "ember_answer_forwards", "Forwards of the language model for an answer.", _COUNTS
        )

    def observe(self, record: TurnRecord) -> None:
        """Count a turn that is over."""
        self._turns.labels(record.outcome.value).inc()
        self._words.inc(record.num_words)
        self._unheard.inc(record.num_words_unheard)
        self._dropped.inc(record.num_answers_dropped)
        for histogram, ms in (
            (self._endpoint, record.endpoint_delay_ms),
            (self._ttft, record.ttft_ms),
            (self._ttfa, record.ttfa_ms),
            (self._stop, record.barge_in_stop_ms),
        ):
            if ms is not None:
                histogram.observe(ms / 1_000)
        if record.num_forwards:
            self._tokens.observe(record.num_tokens)
            self._forwards.observe(record.num_forwards)

    def text(self) -> bytes:
        """Everything in Prometheus's text format, whose content type is CONTENT_TYPE."""
        return _text_of(self.registry)

    def _counter(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _delay(self, name: str, what: str) -> Histogram:
        return self._histogram(name, what, _DELAYS_S)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, what, registry=self.registry, buckets=buckets)
