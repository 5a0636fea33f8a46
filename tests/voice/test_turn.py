"""Whose turn it is: every way through the machine, and random ways through it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from voice.endpoint import Endpointer, EndpointSettings, TurnTaking
from voice.events import (
    AnswerText,
    Heard,
    Speech,
    StageTimes,
    TurnEnded,
    TurnOutcome,
)
from voice.turn import MAX_UTTERANCE_S, IllegalMoveError, TurnMachine, TurnState
from voice.turn_events import (
    Asked,
    Cancelled,
    Closed,
    FalseAlarm,
    Interrupted,
    Judge,
    Judged,
    PartlyUnderstood,
    Pass,
    PlayedOut,
    Replied,
    Speculate,
    SpeechBegan,
    SpeechPaused,
    Ticked,
    TurnAction,
    TurnInput,
    Understood,
)

SILENCE = EndpointSettings(TurnTaking.SILENCE, silence_ms=500)
HOLD = 8_000
"""500 ms in samples."""

State = TurnState
Step = tuple[TurnInput, int]


def text(turn: int) -> Replied:
    return Replied(AnswerText(turn, "Hello."))


def speech(turn: int) -> Replied:
    return Replied(Speech(turn, np.zeros(10, np.float32), 22_050, "Hello."))


def ended(turn: int, outcome: TurnOutcome = TurnOutcome.ANSWERED) -> Replied:
    return Replied(TurnEnded(turn, outcome, StageTimes()))


def machine(settings: EndpointSettings = SILENCE) -> TurnMachine:
    return TurnMachine(Endpointer(settings))


def play(steps: Sequence[Step], turn: TurnMachine | None = None) -> list[list[str]]:
    """What each step makes the machine do, as names with turn numbers."""
    turn = turn or machine()
    return [[told(action) for action in turn.handle(event, now)] for event, now in steps]


def told(action: TurnAction) -> str:
    match action:
        case Judge(start, end):
            return f"judge {start} {end}"
        case Speculate(turn, words):
            return f"speculate {turn} {words}"
        case Pass(event):
            return f"pass {event.turn} {type(event).__name__}"
        case _:
            return f"{type(action).__name__.lower()} {action.turn}"


BEGIN: Step = (SpeechBegan(1_000), 2_500)
PAUSE: Step = (SpeechPaused(20_000), 21_500)
WORDS: Step = (Understood(20_000, "What is it?"), 22_000)
DUE: Step = (Ticked(), 20_000 + HOLD)

TO: dict[State, list[Step]] = {
    State.IDLE: [],
    State.USER_SPEAKING: [BEGIN],
    State.PAUSED: [BEGIN, PAUSE, WORDS],
    State.THINKING: [BEGIN, PAUSE, WORDS, DUE],
    State.SPEAKING: [BEGIN, PAUSE, WORDS, DUE, (speech(1), 30_000)],
    State.OVERLAPPING: [
        *[BEGIN, PAUSE, WORDS, DUE, (speech(1), 30_000)],
        (SpeechBegan(50_000), 51_500),
    ],
    State.WEIGHING: [
        *[BEGIN, PAUSE, WORDS, DUE, (speech(1), 30_000)],
        *[(SpeechBegan(50_000), 51_500), (SpeechPaused(59_000), 60_500)],
    ],
}


def machine_in(state: State) -> TurnMachine:
    turn = machine()
    play(TO[state], turn)
    assert turn.state is state
    return turn


def test_a_whole_turn() -> None:
    steps: list[Step] = [
        *[BEGIN, PAUSE, WORDS],
        (Replied(Heard(1, "What is it?")), 22_100),
        (text(1), 22_200),
        (speech(1), 22_300),
        (Ticked(), 20_000 + HOLD - 1),
        DUE,
        (ended(1), 29_000),
        (PlayedOut(1), 50_000),
    ]
    assert play(steps) == [
        [],
        ["judge 1000 20000"],
        ["speculate 1 What is it?"],
        [],
        [],
        [],
        [],
        ["release 1", "pass 1 Heard", "pass 1 AnswerText", "pass 1 Speech"],
        ["pass 1 TurnEnded"],
        ["complete 1"],
    ]


LATER = 61_000
ANY: list[tuple[State, TurnInput, State | None, list[str]]] = [
    (State.IDLE, SpeechBegan(40_000), State.USER_SPEAKING, []),
    (State.IDLE, SpeechPaused(40_000), State.IDLE, []),
    (State.IDLE, Judged(20_000, 0.9), State.IDLE, []),
    (State.IDLE, Understood(20_000, "late"), State.IDLE, []),
    (State.IDLE, PartlyUnderstood("late"), State.IDLE, []),
    (State.IDLE, Asked("Hi?"), State.THINKING, ["speculate 1 Hi?", "release 1"]),
    (State.IDLE, Closed(), State.IDLE, []),
    (State.IDLE, Cancelled(), State.IDLE, []),
    (State.IDLE, text(1), State.IDLE, []),
    (State.IDLE, Interrupted(), None, []),
    (State.IDLE, FalseAlarm(), None, []),
    (State.IDLE, PlayedOut(1), State.IDLE, []),
    (State.IDLE, Ticked(), State.IDLE, []),
    (State.USER_SPEAKING, SpeechBegan(40_000), None, []),
    (State.USER_SPEAKING, SpeechPaused(40_000), State.PAUSED, ["judge 1000 40000"]),
    (State.USER_SPEAKING, Understood(40_000, "late"), State.USER_SPEAKING, []),
    (State.USER_SPEAKING, PartlyUnderstood("What"), State.USER_SPEAKING, []),
    (State.USER_SPEAKING, Asked("Hi?"), State.THINKING, ["speculate 1 Hi?", "release 1"]),
    (State.USER_SPEAKING, Closed(), State.PAUSED, [f"judge 1000 {LATER}"]),
    (State.USER_SPEAKING, Cancelled(), State.IDLE, []),
    (State.USER_SPEAKING, Interrupted(), None, []),
    (State.USER_SPEAKING, FalseAlarm(), None, []),
    (State.USER_SPEAKING, PlayedOut(1), State.USER_SPEAKING, []),
    (State.USER_SPEAKING, Ticked(), State.USER_SPEAKING, []),
    (State.PAUSED, SpeechBegan(40_000), State.USER_SPEAKING, []),
    (State.PAUSED, SpeechPaused(40_000), State.PAUSED, []),
    (State.PAUSED, Judged(19_999, 0.9), State.PAUSED, []),
    (State.PAUSED, Understood(19_999, "late"), State.PAUSED, []),
    (State.PAUSED, PartlyUnderstood("late"), State.PAUSED, []),
    (State.PAUSED, Asked("Hi?"), State.THINKING, ["drop 1", "speculate 2 Hi?", "release 2"]),
    (State.PAUSED, Closed(), State.THINKING, ["release 1"]),
    (State.PAUSED, Cancelled(), State.IDLE, ["drop 1"]),
    (State.PAUSED, text(1), State.PAUSED, []),
    (State.PAUSED, ended(1), State.PAUSED, []),
    (State.PAUSED, Interrupted(), None, []),
    (State.PAUSED, FalseAlarm(), None, []),
    (State.PAUSED, PlayedOut(1), State.PAUSED, []),
    (State.PAUSED, Ticked(), State.THINKING, ["release 1"]),
    (State.THINKING, SpeechBegan(40_000), State.USER_SPEAKING, []),
    (State.THINKING, SpeechPaused(40_000), State.THINKING, []),
    (State.THINKING, Judged(20_000, 0.9), State.THINKING, []),
    (State.THINKING, Understood(20_000, "late"), State.THINKING, []),
    (State.THINKING, Asked("Hi?"), State.THINKING, ["abort 1", "speculate 2 Hi?", "release 2"]),
    (State.THINKING, Closed(), State.THINKING, []),
    (State.THINKING, Cancelled(), State.IDLE, ["abort 1"]),
    (State.THINKING, text(1), State.THINKING, ["pass 1 AnswerText"]),
    (State.THINKING, text(7), State.THINKING, []),
    (State.THINKING, speech(1), State.SPEAKING, ["pass 1 Speech"]),
    (State.THINKING, ended(1), State.IDLE, ["pass 1 TurnEnded", "complete 1"]),
    (State.THINKING, Interrupted(), None, []),
    (State.THINKING, FalseAlarm(), None, []),
    (State.THINKING, PlayedOut(1), State.THINKING, []),
    (State.THINKING, Ticked(), State.THINKING, []),
    (State.SPEAKING, SpeechBegan(40_000), State.OVERLAPPING, []),
    (State.SPEAKING, SpeechPaused(40_000), State.SPEAKING, []),
    (State.SPEAKING, Understood(20_000, "late"), State.SPEAKING, []),
    (State.SPEAKING, Asked("Hi?"), State.THINKING, ["stop 1", "speculate 2 Hi?", "release 2"]),
    (State.SPEAKING, Closed(), State.SPEAKING, []),
    (State.SPEAKING, Cancelled(), State.IDLE, ["stop 1"]),
    (State.SPEAKING, speech(1), State.SPEAKING, ["pass 1 Speech"]),
    (State.SPEAKING, speech(0), State.SPEAKING, []),
    (State.SPEAKING, ended(1), State.SPEAKING, ["pass 1 TurnEnded"]),
    (State.SPEAKING, Interrupted(), None, []),
    (State.SPEAKING, FalseAlarm(), None, []),
    (State.SPEAKING, PlayedOut(1), None, []),  # it is not made yet
    (State.SPEAKING, PlayedOut(0), State.SPEAKING, []),
    (State.SPEAKING, Ticked(), State.SPEAKING, []),
    (State.OVERLAPPING, SpeechBegan(40_000), None, []),
    (State.OVERLAPPING, SpeechPaused(60_500), State.WEIGHING, ["judge 50000 60500"]),
    (State.OVERLAPPING, Asked("Hi?"), State.THINKING, ["stop 1", "speculate 2 Hi?", "release 2"]),
    (State.OVERLAPPING, Cancelled(), State.IDLE, ["stop 1"]),
    (State.OVERLAPPING, speech(1), State.OVERLAPPING, ["pass 1 Speech"]),
    (State.OVERLAPPING, ended(1), State.OVERLAPPING, ["pass 1 TurnEnded"]),
    (State.OVERLAPPING, Interrupted(), State.USER_SPEAKING, ["stop 1"]),
    (State.OVERLAPPING, FalseAlarm(), None, []),
    (State.OVERLAPPING, Closed(), State.OVERLAPPING, []),
    (State.WEIGHING, SpeechBegan(40_000), State.OVERLAPPING, []),
    (State.WEIGHING, SpeechPaused(40_000), State.WEIGHING, []),
    (State.WEIGHING, Judged(59_000, 0.5), State.WEIGHING, []),
    (State.WEIGHING, Understood(59_000, "Stop."), State.WEIGHING, []),
    (State.WEIGHING, Asked("Hi?"), State.THINKING, ["stop 1", "speculate 2 Hi?", "release 2"]),
    (State.WEIGHING, Cancelled(), State.IDLE, ["stop 1"]),
    (State.WEIGHING, speech(1), State.WEIGHING, ["pass 1 Speech"]),
    (State.WEIGHING, Interrupted(), State.PAUSED, ["stop 1"]),
    (State.WEIGHING, FalseAlarm(), State.SPEAKING, []),
]


@pytest.mark.parametrize(("state", "event", "after", "actions"), ANY)
def test_every_input_in_every_state(
    state: State, event: TurnInput, after: State | None, actions: list[str]
) -> None:
    turn = machine_in(state)
    if after is None:
        with pytest.raises(IllegalMoveError, match=state.name):
            turn.handle(event, LATER)
        assert turn.state is state
    else:
        assert play([(event, LATER)], turn) == [actions]
        assert turn.state is after


def test_the_same_words_keep_the_work() -> None:
    turn = machine_in(State.PAUSED)
    again: list[Step] = [
        (text(1), 22_500),
        (SpeechBegan(23_000), 24_500),
        (PartlyUnderstood("what is"), 25_000),
        (SpeechPaused(26_000), 27_500),
        (Understood(26_000, "what is it"), 28_000),
        (Ticked(), 26_000 + HOLD),
    ]
    done = play(again, turn)
    assert done == [[], [], [], ["judge 1000 26000"], [], ["release 1", "pass 1 AnswerText"]]


def test_other_words_drop_the_work_as_soon_as_they_are_known() -> None:
    turn = machine_in(State.PAUSED)
    more: list[Step] = [
        (SpeechBegan(23_000), 24_500),
        (PartlyUnderstood("What is it called"), 25_000),
        (text(1), 25_100),
        (SpeechPaused(26_000), 27_500),
        (Understood(26_000, "What is it called?"), 28_000),
    ]
    assert play(more, turn) == [
        [],
        ["drop 1"],
        [],
        ["judge 1000 26000"],
        ["speculate 2 What is it called?"],
    ]


def test_a_revised_transcript_drops_the_old_answer_first() -> None:
    turn = machine_in(State.PAUSED)
    revised: list[Step] = [
        (SpeechBegan(23_000), 24_500),
        (SpeechPaused(26_000), 27_500),
        (Understood(26_000, "Where is it?"), 28_000),
    ]
    assert play(revised, turn)[-1] == ["drop 1", "speculate 2 Where is it?"]


def test_a_cough_before_anything_sounds_delays_the_answer_and_does_not_kill_it() -> None:
    turn = machine_in(State.THINKING)
    cough: list[Step] = [
        (text(1), 28_100),
        (SpeechBegan(28_500), 30_000),
        (speech(1), 30_500),  # must not sound over the user
        (SpeechPaused(31_000), 32_500),
        (Understood(31_000, "What is it?"), 33_000),
        (Ticked(), 31_000 + HOLD),
    ]
    assert play(cough, turn) == [
        *[["pass 1 AnswerText"], [], [], ["judge 1000 31000"], []],
        ["pass 1 Speech"],  # released before, so the client is not told again
    ]
    assert turn.state is State.SPEAKING


def test_whoever_goes_on_before_anything_sounds_continues_the_utterance() -> None:
    turn = machine_in(State.THINKING)
    more: list[Step] = [
        (SpeechBegan(28_500), 30_000),
        (SpeechPaused(35_000), 36_500),
        (Understood(35_000, "What is it called?"), 37_000),
    ]
    assert play(more, turn) == [
        [],
        ["judge 1000 35000"],
        ["abort 1", "speculate 2 What is it called?"],
    ]


def test_no_words_end_the_turn_in_silence() -> None:
    turn = machine_in(State.USER_SPEAKING)
    assert play([PAUSE, (Understood(20_000, ""), 22_000), DUE], turn) == [
        ["judge 1000 20000"],
        [],
        [],
    ]
    assert turn.state is State.IDLE


def test_words_that_come_after_the_hold_release_at_once() -> None:
    turn = machine_in(State.USER_SPEAKING)
    play([PAUSE, DUE], turn)
    assert turn.state is State.PAUSED
    late: Step = (Understood(20_000, "What is it?"), 40_000)
    assert play([late], turn) == [["speculate 1 What is it?", "release 1"]]


def test_the_endpoint_model_shortens_the_hold() -> None:
    turn = machine(EndpointSettings())
    play([BEGIN, PAUSE, WORDS, (Ticked(), 30_000)], turn)
    assert turn.state is State.PAUSED
    assert play([(Judged(20_000, 0.99), 30_001)], turn) == [["release 1"]]


def test_push_to_talk_waits_for_the_client() -> None:
    turn = machine(EndpointSettings(TurnTaking.PUSH_TO_TALK))
    play([BEGIN, PAUSE, WORDS, (Ticked(), 10_000_000)], turn)
    assert turn.state is State.PAUSED
    assert play([(Closed(), 10_000_001)], turn) == [["release 1"]]


def test_closing_in_the_middle_of_speech_needs_the_words_first() -> None:
    turn = machine_in(State.USER_SPEAKING)
    steps: list[Step] = [
        (Closed(), 30_000),
        (SpeechPaused(31_000), 32_500),
        (Understood(30_000, "What is it?"), 33_000),
    ]
    assert play(steps, turn)[-1] == ["speculate 1 What is it?", "release 1"]


def test_who_speaks_for_ever_is_answered() -> None:
    turn = machine_in(State.USER_SPEAKING)
    now = 1_000 + MAX_UTTERANCE_S * 16_000
    assert play([(Ticked(), now), (Ticked(), now + 1)], turn) == [[], [f"judge 1000 {now + 1}"]]


def test_an_interruption_understood_late_becomes_the_next_turn() -> None:
    turn = machine_in(State.WEIGHING)
    steps: list[Step] = [
        (Understood(59_000, "No, the other one."), 61_000),
        (Interrupted(), 61_000),
        (speech(1), 61_500),
        (Ticked(), 59_000 + HOLD),
    ]
    assert play(steps, turn) == [
        [],
        ["stop 1", "speculate 2 No, the other one."],
        [],
        ["release 2"],
    ]


@pytest.mark.parametrize("state", [State.OVERLAPPING, State.WEIGHING])
def test_an_answer_that_ends_while_the_user_speaks_leaves_the_turn_to_the_user(
    state: State,
) -> None:
    turn = machine_in(state)
    play([(ended(1), 61_000)], turn)
    assert play([(PlayedOut(1), 62_000)], turn) == [["complete 1"]]
    assert turn.state is (State.USER_SPEAKING if state is State.OVERLAPPING else State.PAUSED)


def test_what_comes_after_the_end_of_an_answer_is_late() -> None:
    turn = machine_in(State.SPEAKING)
    play([(ended(1), 31_000)], turn)
    assert play([(ended(1, TurnOutcome.FAILED), 31_001), (speech(1), 31_002)], turn) == [[], []]
