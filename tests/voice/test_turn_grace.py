"""Turns that were taken too soon are given back."""

from __future__ import annotations

import pytest

from tests.voice.test_turn import State, Step, machine_in, play
from voice.turn_events import Interrupted, SpeechBegan, SpeechPaused, Stop, Understood


def test_whoever_speaks_just_after_the_answer_began_goes_on_with_the_utterance() -> None:
    turn = machine_in(State.SPEAKING)
    steps: list[Step] = [
        (SpeechBegan(40_000), 41_500),
        (SpeechPaused(50_000), 51_500),
        (Understood(50_000, "What is it called?"), 52_000),
        (Interrupted(), 52_000),
    ]
    assert play(steps, turn) == [
        [],
        ["judge 1000 50000"],
        [],
        ["stop 1", "speculate 2 What is it called?"],
    ]


@pytest.mark.parametrize(("start", "counts"), [(45_999, False), (46_000, True)])
def test_an_answer_that_was_too_soon_does_not_count(start: int, counts: bool) -> None:
    turn = machine_in(State.SPEAKING)
    turn.handle(SpeechBegan(start), 48_000)
    assert turn.handle(Interrupted(), 50_000) == (Stop(1, counts),)
