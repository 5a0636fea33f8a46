"""What is asked of the engine in a benchmark, and what the answers are made into."""

from __future__ import annotations

import pytest

from llm.bench.endurance import Ended, soak_report, visits
from llm.bench.engine_speed import (
    CACHED_TOKENS,
    NEW_TOKENS,
    Answer,
    conversation,
    engine_targets,
    new_turn,
    question,
    stream_row,
)
from llm.bench.report import Report, Table
from llm.types import Message, Usage


def count(messages: tuple[Message, ...]) -> int:
    """A token for each word and three for each frame."""
    return 3 + sum(3 + len(message.content.split()) for message in messages)


def test_a_conversation_has_the_tokens_it_should() -> None:
    messages = conversation(count, CACHED_TOKENS)
    assert count(messages) == CACHED_TOKENS
    assert [m.role for m in messages[-2:]] == ["user", "assistant"]


def test_a_new_turn_adds_its_tokens_and_differs_from_the_first_word_on() -> None:
    history = conversation(count, CACHED_TOKENS)
    first, second = (new_turn(count, history, i).messages for i in (1, 2))
    assert count(first) == CACHED_TOKENS + NEW_TOKENS
    assert first[:-1] == second[:-1] == history
    assert first[-1].content.split()[1] != second[-1].content.split()[1]


def test_a_first_turn_has_no_history() -> None:
    request = new_turn(count, (), 1)
    assert len(request.messages) == 1
    assert count(request.messages) == NEW_TOKENS


def test_questions_differ_and_never_end_early() -> None:
    requests = [question(i, max_new=5) for i in range(16)]
    assert len({request.messages for request in requests}) == 16
    assert all(request.sampling.ignore_eos for request in requests)


def test_a_stream_is_described_from_its_commits() -> None:
    usage = Usage(num_completion_tokens=5, num_forwards=4, num_drafted=6, num_accepted=3)
    answers = [Answer("x", (50.0, 60.0, 80.0, 90.0), usage)] * 2
    row = stream_row(answers)
    assert row["tokens_s"] == pytest.approx(4 / 0.040)
    assert row["tpf"] == pytest.approx(5 / 4)
    assert row["nfe"] == 4
    assert row["drafts_kept"] == 0.5
    assert row["gap_median_ms"] == 10
    assert row["ttft_ms"] == 50


def test_an_answer_without_text_took_until_its_end() -> None:
    assert Answer("", (), Usage(total_ms=33.0)).ttft_ms == 33.0


def test_the_bars_of_callers_come_from_the_tables() -> None:
    ttft = [
        {"running_beside": 0, "median_ms": 40.0, "p95_ms": 90.0},
        {"running_beside": 8, "median_ms": 120.0, "p95_ms": 500.0},
    ]
    concurrent = [
        {"requests": 1, "tokens_s": 50.0, "same_texts": 16, "texts": 16},
        {"requests": 16, "tokens_s": 200.0, "same_texts": 12, "texts": 16},
    ]
    report = Report({}, [Table("ttft", "", ttft), Table("concurrent", "", concurrent)])  # type: ignore[arg-type]
    values = [(target.value, target.met) for target in engine_targets(report)]
    assert values == [(90, False), (3, True), (4, True), (28 / 32, False)]


def test_a_soak_asks_all_kinds_and_the_same_each_time() -> None:
    asked = list(visits(600))
    assert len(asked) == 600
    assert asked == list(visits(600))
    aborts = [visit.abort_after for visit in asked]
    assert 150 < sum(abort is not None for abort in aborts) < 250
    assert {0, 1, None} <= set(aborts)
    assert {visit.request.sampling.is_greedy for visit in asked} == {True, False}


GOOD = Ended({"stop": 6, "cancelled": 4}, 16, 16, 0, 90, 100)


def missed(ended: Ended, memory: list[int], asked: int = 10) -> list[str]:
    _, targets = soak_report(asked, memory, 2.0, ended)
    return [target.name for target in targets if not target.met]


def test_a_soak_without_a_leak_meets_every_bar() -> None:
    tables, _ = soak_report(10, [500, 1000, 1000, 1009, 1000, 1000], 2.0, GOOD)
    assert tables[0].rows[0]["requests_s"] == 5
    assert missed(GOOD, [500, 1000, 1000, 1009, 1000, 1000]) == []


@pytest.mark.parametrize(
    ("ended", "memory", "asked", "name"),
    [
        (GOOD, [1, 100, 100, 100, 100, 102], 10, "growth of memory"),
        (GOOD, [1, 100, 105, 100, 100, 100], 10, "growth of memory"),
        (GOOD, [100, 100], 11, "requests without"),
        (Ended({"stop": 9, "error": 1}, 16, 16, 0, 0, 100), [1, 1], 10, "requests that failed"),
        (Ended({"stop": 10}, 15, 16, 0, 0, 100), [1, 1], 10, "slots not free"),
        (Ended({"stop": 10}, 16, 16, 1, 0, 100), [1, 1], 10, "requests still held"),
        (Ended({"stop": 10}, 16, 16, 0, 101, 100), [1, 1], 10, "prefix cache"),
    ],
)
def test_each_leak_is_found(ended: Ended, memory: list[int], asked: int, name: str) -> None:
    (found,) = missed(ended, memory, asked)
    assert found.startswith(name)
