from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.types import Message
from voice import wire
from voice.dialogue import Abort, Action, Dialogue, History, Run, Send, SendAudio, State
from voice.events import (
    AnswerGuess,
    AnswerText,
    Heard,
    Speech,
    StageTimes,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
)
from voice.wire import ErrorCode, WireError

START, END, CANCEL, ASK = wire.SpeechStart(), wire.SpeechEnd(), wire.Cancel(), wire.Question("hi")
SECOND = bytes(32_000)


def dialogue_in(state: State) -> Dialogue:
    dialogue = Dialogue(History(1000))
    if state in {State.LISTENING, State.DISCARDING}:
        dialogue.receive(START)
    if state is State.DISCARDING:
        dialogue.receive_audio(61 * SECOND)
    if state is State.ANSWERING:
        dialogue.receive(ASK)
    assert dialogue.state is state
    return dialogue


def kinds(actions: object) -> list[str]:
    assert isinstance(actions, tuple | list)
    return [a.message.TYPE if isinstance(a, Send) else type(a).__name__.lower() for a in actions]


INTERRUPTION = ["abort", "turn.ended"]


@pytest.mark.parametrize(
    ("state", "message", "after", "actions"),
    [
        (State.IDLE, START, State.LISTENING, []),
        (State.IDLE, END, None, "speech.end comes after speech.start"),
        (State.IDLE, CANCEL, State.IDLE, []),
        (State.IDLE, ASK, State.ANSWERING, ["transcript", "run"]),
        (State.LISTENING, START, None, "started already"),
        (State.LISTENING, END, State.ANSWERING, ["run"]),
        (State.LISTENING, CANCEL, State.IDLE, []),
        (State.LISTENING, ASK, None, "send speech.end or cancel first"),
        (State.DISCARDING, START, State.LISTENING, []),
        (State.DISCARDING, END, State.IDLE, []),
        (State.DISCARDING, CANCEL, State.IDLE, []),
        (State.DISCARDING, ASK, State.ANSWERING, ["transcript", "run"]),
        (State.ANSWERING, START, State.LISTENING, INTERRUPTION),
        (State.ANSWERING, END, None, "speech.end comes after speech.start"),
        (State.ANSWERING, CANCEL, State.IDLE, INTERRUPTION),
        (State.ANSWERING, ASK, State.ANSWERING, [*INTERRUPTION, "transcript", "run"]),
    ],
)
def test_every_message_in_every_state(
    state: State, message: wire.ClientMessage, after: State | None, actions: list[str] | str
) -> None:
    dialogue = dialogue_in(state)
    if after is None:
        with pytest.raises(WireError, match=str(actions)) as refused:
            dialogue.receive(message)
        assert refused.value.code is ErrorCode.ILLEGAL_MOVE
        assert dialogue.state is state
    else:
        assert kinds(dialogue.receive(message)) == actions
        assert dialogue.state is after


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        (State.IDLE, True),
        (State.LISTENING, False),
        (State.DISCARDING, False),
        (State.ANSWERING, True),
    ],
)
def test_audio_is_taken_only_while_listening(state: State, refused: bool) -> None:
    dialogue = dialogue_in(state)
    if refused:
        with pytest.raises(WireError, match="audio comes after") as error:
            dialogue.receive_audio(SECOND)
        assert error.value.code is ErrorCode.ILLEGAL_MOVE
    else:
        assert dialogue.receive_audio(SECOND) == ()


def test_half_a_sample_is_refused_and_the_rest_kept() -> None:
    dialogue = dialogue_in(State.LISTENING)
    dialogue.receive_audio(b"\1\0")
    with pytest.raises(WireError, match="3 bytes") as refused:
        dialogue.receive_audio(b"\2\0\3")
    assert refused.value.code is ErrorCode.BAD_AUDIO
    dialogue.receive_audio(b"\4\0")
    assert dialogue.receive(END) == (Run(1, b"\1\0\4\0", None, ()),)


def test_exactly_sixty_seconds_fit_and_one_sample_more_does_not() -> None:
    dialogue = dialogue_in(State.LISTENING)
    assert dialogue.receive_audio(60 * SECOND) == ()
    (told,) = dialogue.receive_audio(b"\0\0")
    assert isinstance(told, Send)
    assert isinstance(told.message, wire.ErrorMessage)
    assert told.message.code is ErrorCode.UTTERANCE_TOO_LONG
    assert dialogue.receive_audio(SECOND) == ()  # told once, not for every frame
    assert dialogue.receive(END) == ()
    dialogue.receive(START)
    assert dialogue.receive(END) == (Run(2, b"", None, ()),)


def test_speech_is_framed_by_audio_start_and_end() -> None:
    dialogue = dialogue_in(State.ANSWERING)
    samples = np.zeros(10, np.float32)
    speech = Speech(1, samples, 22_050, "Hi.")
    assert kinds(dialogue.handle(speech)) == ["audio.start", "sendaudio"]
    assert kinds(dialogue.handle(speech)) == ["sendaudio"]
    assert kinds(dialogue.receive(START)) == ["abort", "audio.end", "turn.ended"]


@pytest.mark.parametrize(
    "make",
    [
        lambda turn: Heard(turn, "late"),
        lambda turn: AnswerGuess(turn, 0, "late"),
        lambda turn: AnswerText(turn, "late"),
        lambda turn: Speech(turn, np.zeros(1, np.float32), 22_050, "late"),
        lambda turn: TurnEnded(turn, TurnOutcome.ANSWERED, StageTimes()),
    ],
)
def test_late_events_of_an_interrupted_turn_do_nothing(make: Callable[[int], TurnEvent]) -> None:
    for interruption in (START, ASK, CANCEL):
        dialogue = dialogue_in(State.ANSWERING)
        dialogue.receive(interruption)
        state = dialogue.state
        assert dialogue.handle(make(1)) == ()
        assert dialogue.state is state


def answer(dialogue: Dialogue, question: str, *pieces: str) -> list[Action]:
    dialogue.receive(START)
    (run,) = dialogue.receive(END)
    turn = dialogue.turn
    dialogue.handle(Heard(turn, question))
    for piece in pieces:
        dialogue.handle(AnswerGuess(turn, 0, "a guess"))
        dialogue.handle(AnswerText(turn, piece))
    dialogue.handle(TurnEnded(turn, TurnOutcome.ANSWERED, StageTimes()))
    return [run]


def test_history_holds_what_was_committed() -> None:
    dialogue = Dialogue(History(1000))
    answer(dialogue, "one?", "Yes", ", one.")
    dialogue.receive(wire.Question("two?"))
    dialogue.handle(AnswerText(2, "Tw"))
    dialogue.handle(AnswerGuess(2, 2, "o, maybe"))
    dialogue.receive(START)  # interrupts
    (run,) = dialogue.receive(END)
    assert isinstance(run, Run)
    assert run.turn == 3
    assert run.history == (
        Message("user", "one?"),
        Message("assistant", "Yes, one."),
        Message("user", "two?"),
        Message("assistant", "Tw"),
    )


def test_a_question_without_an_answer_leaves_no_trace() -> None:
    dialogue = Dialogue(History(1000))
    answer(dialogue, "one?")
    assert answer(dialogue, "two?", "2") == [Run(2, b"", None, ())]


def test_a_failed_turn_says_so() -> None:
    dialogue = dialogue_in(State.ANSWERING)
    failed = dialogue.fail(1, "it broke")
    assert kinds(failed) == ["error", "turn.ended"]
    assert failed[0] == Send(wire.ErrorMessage(ErrorCode.TURN_FAILED, "it broke"))
    assert dialogue.state is State.IDLE
    assert dialogue.fail(1, "again") == ()


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=40))
def test_history_keeps_the_newest_that_fit(pairs: list[tuple[str, str]]) -> None:
    history = History(max_characters=100)
    for question, reply in pairs:
        history.add(question, reply)
        messages = history.messages()
        assert sum(len(m.content) for m in messages) <= 100
        assert [m.role for m in messages] == ["user", "assistant"] * (len(messages) // 2)
    told = [text for pair in pairs if all(pair) for text in pair]
    kept = [m.content for m in history.messages()]
    assert kept == told[len(told) - len(kept) :]


@given(st.lists(st.sampled_from([START, END, CANCEL, ASK, b"\0\0", "finish", "late"])))
def test_whatever_happens_each_started_turn_ends_once(
    moves: list[wire.ClientMessage | bytes | str],
) -> None:
    dialogue = Dialogue(History(1000))
    running: list[int] = []
    ended: list[int] = []
    for move in moves:
        try:
            if isinstance(move, bytes):
                actions = dialogue.receive_audio(move)
            elif isinstance(move, str):
                turn = dialogue.turn if move == "finish" else dialogue.turn - 1
                actions = dialogue.handle(TurnEnded(turn, TurnOutcome.ANSWERED, StageTimes()))
            else:
                actions = dialogue.receive(move)
        except WireError:
            continue
        for action in actions:
            assert not isinstance(action, SendAudio)
            if isinstance(action, Run):
                assert running == ended, "one answer at a time"
                running.append(action.turn)
            elif isinstance(action, Abort):
                assert len(running) == len(ended) + 1
            elif isinstance(action.message, wire.TurnDone):
                ended.append(action.message.turn)
    assert running[: len(ended)] == ended
    assert len(running) - len(ended) == (dialogue.state is State.ANSWERING)
    assert running == sorted(set(running))
