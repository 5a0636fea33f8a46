"""Random walks through the turn machine: nothing legal breaks it, and no old turn sounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.voice.test_turn import State, ended, machine
from voice.endpoint import EndpointSettings, TurnTaking
from voice.events import AnswerText, Speech, TurnEnded, TurnEvent
from voice.turn_events import (
    Abort,
    Asked,
    Cancelled,
    Closed,
    Complete,
    Drop,
    FalseAlarm,
    Interrupted,
    Judge,
    Judged,
    PartlyUnderstood,
    Pass,
    PlayedOut,
    Release,
    Replied,
    Speculate,
    SpeechBegan,
    SpeechPaused,
    Stop,
    Ticked,
    TurnAction,
    TurnInput,
    Understood,
)


class Walk:
    """A random walk that the world could take, and what must hold all along."""

    def __init__(self) -> None:
        self.turn = machine(EndpointSettings(TurnTaking.SILENCE, silence_ms=100))
        self.now = 0
        self.is_speech = False
        self.pauses = [0]
        self.begun: set[int] = set()
        self.released: set[int] = set()
        self.over: set[int] = set()
        self.made: set[int] = set()

    def step(self, draw: st.DataObject) -> None:
        self.now += draw.draw(st.integers(0, 5_000))
        event = draw.draw(st.sampled_from(self.possible()))
        for action in self.turn.handle(event, self.now):
            self.check(action)

    def possible(self) -> list[TurnInput]:
        numbers = range(max(0, self.turn.turn - 1), self.turn.turn + 1)
        events: list[TurnInput] = [Asked("Hi?"), Closed(), Cancelled(), Ticked(), Ticked()]
        events += [Judged(end, 0.5) for end in self.pauses[-2:]]
        for words in ("", "What is it?", "what is it", "Where?"):
            events += [Understood(end, words) for end in self.pauses[-2:]]
            events.append(PartlyUnderstood(words))
        for number in numbers:
            made: list[TurnEvent] = [AnswerText(number, "a")]
            made.append(Speech(number, np.zeros(1, np.float32), 22_050, "a"))
            events += [Replied(event) for event in made] + [ended(number)]
        events += [PlayedOut(number) for number in self.made]
        if self.turn.state in {State.OVERLAPPING, State.WEIGHING}:
            events.append(Interrupted())
        if self.turn.state is State.WEIGHING:
            events.append(FalseAlarm())
        return events

    def check(self, action: TurnAction) -> None:
        match action:
            case Speculate(number, words):
                assert words
                assert self.begun == self.over, "one answer at a time"
                assert number == max(self.begun, default=0) + 1
                self.begun.add(number)
            case Release(number):
                assert number not in self.over
                self.released.add(number)
            case Pass(event):
                assert event.turn in self.released - self.over
                assert event.turn == max(self.begun)
                self.made |= {event.turn} if isinstance(event, TurnEnded) else set()
            case Drop(number):
                assert number not in self.released
                self.over.add(number)
            case Stop(number) | Abort(number) | Complete(number):
                assert number in self.released - self.over
                self.over.add(number)
            case Judge(start, end):
                assert 0 <= start <= end <= self.now
                self.pauses.append(end)


@given(st.data())
def test_no_order_of_events_breaks_it_or_lets_an_old_turn_sound(data: st.DataObject) -> None:
    walk = Walk()
    for _ in range(data.draw(st.integers(0, 60))):
        walk.now += 1
        if data.draw(st.integers(0, 3)) == 0:
            walk.is_speech = not walk.is_speech
            at = walk.now
            walk.now += 1_500
            event = SpeechBegan(at) if walk.is_speech else SpeechPaused(at)
            for action in walk.turn.handle(event, walk.now):
                walk.check(action)
        walk.step(data)
    assert walk.begun - walk.over <= {walk.turn.turn}
