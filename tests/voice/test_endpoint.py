from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.endpoint import (
    LONGEST_HOLD_MS,
    Eagerness,
    Endpointer,
    EndpointSettings,
    TurnTaking,
    is_half_a_number,
    words_hold_ms,
)

WHOLE = "What is the capital of France?"


def hold_ms(
    probability: float | None, text: str | None = WHOLE, eagerness: Eagerness = Eagerness.MEDIUM
) -> int:
    hold = Endpointer(EndpointSettings(eagerness=eagerness)).hold_ms(probability, text)
    assert hold is not None
    return hold


def test_what_sounds_complete_is_released_200_ms_after_the_soft_end() -> None:
    assert hold_ms(0.97) == 96 + 200


def test_nothing_is_held_for_more_than_three_seconds() -> None:
    assert hold_ms(None) == LONGEST_HOLD_MS
    assert hold_ms(0.0, "and", Eagerness.LOW) == LONGEST_HOLD_MS


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(Eagerness), st.text(max_size=20))
def test_the_more_complete_the_shorter(
    one: float, other: float, eagerness: Eagerness, text: str
) -> None:
    low, high = sorted((one, other))
    assert 200 <= hold_ms(high, text, eagerness) <= hold_ms(low, text, eagerness) <= LONGEST_HOLD_MS


def test_eagerness_orders_the_holds() -> None:
    holds = [hold_ms(0.6, WHOLE, e) for e in (Eagerness.HIGH, Eagerness.MEDIUM, Eagerness.LOW)]
    assert holds == sorted(set(holds))
    assert hold_ms(0.6, WHOLE, Eagerness.AUTO) == holds[1]


@pytest.mark.parametrize(
    ("text", "least_ms"),
    [
        ("I would like to go to Rome and", 1_600),
        ("Tell me about the", 1_600),
        ("So, um...", 1_600),
        ("It was, uh", 1_600),
        ("Well,", 1_600),
        ("My name is", 1_200),
        ("I am from", 1_200),
        ("I think so.", 1_200),
        ("What is the capital of France?", 0),
        ("Who is it for?", 0),
        ("Turn it on.", 0),
        ("My number is 555 12", 2_000),
        ("", 0),
        ("?!...", 0),
    ],
)
def test_some_last_words_ask_for_more(text: str, least_ms: int) -> None:
    assert words_hold_ms(text) == least_ms


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("My number is 555 12", True),
        ("My phone number is five five five", True),
        ("My number is 555-123-4567.", False),
        ("Call me at 030 12", True),
        ("It costs 25", False),
        ("Take number 4", False),
        ("My phone number", False),
    ],
)
def test_half_a_number_is_waited_for(text: str, half: bool) -> None:
    assert is_half_a_number(text) is half


def test_unfinished_words_outweigh_a_complete_sound() -> None:
    assert hold_ms(0.97, "I need bread and") >= 1_500
    assert hold_ms(0.97, "My number is 555 12") >= 2_000
    assert hold_ms(0.0, "I need bread and") >= hold_ms(0.0)


def test_fixed_silence_and_push_to_talk_ask_nobody() -> None:
    fixed = Endpointer(EndpointSettings(TurnTaking.SILENCE, silence_ms=432))
    assert fixed.hold_ms(None, None) == fixed.hold_ms(0.0, "and") == 432
    assert Endpointer(EndpointSettings(TurnTaking.PUSH_TO_TALK)).hold_ms(1.0, WHOLE) is None


def test_auto_learns_and_stays_within_bounds() -> None:
    auto = Endpointer(EndpointSettings(eagerness=Eagerness.AUTO))
    before = auto.hold_ms(0.97, WHOLE)
    auto.was_too_soon()
    after = auto.hold_ms(0.97, WHOLE)
    assert before is not None
    assert after is not None
    assert after > before
    for _ in range(100):
        auto.was_right()
    boldest = auto.hold_ms(0.97, WHOLE)
    assert boldest is not None
    assert 200 <= boldest < before
    for _ in range(100):
        auto.was_too_soon()
    assert (auto.hold_ms(0.97, WHOLE) or 0) < 600


def test_a_fixed_eagerness_does_not_learn() -> None:
    low = Endpointer(EndpointSettings(eagerness=Eagerness.LOW))
    before = low.hold_ms(0.9, WHOLE)
    low.was_too_soon()
    assert low.hold_ms(0.9, WHOLE) == before
