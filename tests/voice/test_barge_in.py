"""The table of the machine; what noises, echoes and people do to it is in test_barge_in_sounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.barge_in import (
    BargeIn,
    BargeInAction,
    BargeInInput,
    BargeInState,
    IllegalBargeInError,
    Listened,
    Protected,
    SpeechEnded,
    SpeechStarted,
    Words,
    means_to_interrupt,
)

MS = 16
NEAR = Listened(echo=0.2, above_db=30.0)
ECHO = Listened(echo=0.9, above_db=30.0)
FAR = Listened(echo=0.2, above_db=4.0)

Script = list[tuple[int, BargeInInput]]
Log = list[tuple[int, BargeInAction]]
DUCK, UNDUCK, PAUSE, RESUME, INTERRUPT = BargeInAction


def play(script: Script) -> tuple[Log, BargeIn]:
    machine, log = BargeIn(), []
    for ms, event in script:
        if (action := machine.handle(event, ms * MS)) is not None:
            log.append((ms, action))
        if action is INTERRUPT:
            break
    return log, machine


def frames(start: int, end: int, frame: Listened = NEAR) -> Script:
    return [(ms, frame) for ms in range(start, end, 20)]


def speech(start: int, end: int, frame: Listened = NEAR) -> Script:
    """Speech that the detector believes after 100 ms, and whose end it believes 100 ms later."""
    return [
        (start + 100, SpeechStarted(start * MS)),
        *frames(start + 100, end + 100, frame),
        (end + 100, SpeechEnded(end * MS)),
    ]


TABLE: dict[str, tuple[Script, Log]] = {
    "a cough": (speech(0, 150) + frames(260, 3_000), [(100, DUCK), (250, UNDUCK)]),
    "words at once": (
        [*speech(0, 150)[:-1], (240, Words("stop"))],
        [(100, DUCK), (240, INTERRUPT)],
    ),
    "words after the voice has stopped": (
        [*speech(0, 800), (1_000, Words("what about Rome", final=True))],
        [(100, DUCK), (260, PAUSE), (1_000, INTERRUPT)],
    ),
    "mhm, understood while it is said": (
        [*speech(0, 100)[:-1], (200, Words("mhm")), *frames(220, 400), (420, SpeechEnded(0))],
        [(100, DUCK), (220, UNDUCK)],
    ),
    "yeah, but": (
        [
            *speech(0, 100)[:-1],
            (200, Words("yeah")),
            *frames(220, 300),
            (300, Words("yeah but wait")),
            *frames(320, 400),
        ],
        [(100, DUCK), (220, UNDUCK), (320, DUCK), (340, INTERRUPT)],
    ),
    "okay, understood after the voice has stopped": (
        [*speech(0, 400), (600, Words("Okay.", final=True))],
        [(100, DUCK), (260, PAUSE), (600, RESUME)],
    ),
    "no words: on after half a second": (
        [*speech(0, 600), (760, Words("", final=True)), *frames(780, 2_000)],
        [(100, DUCK), (260, PAUSE), (1_100, RESUME)],
    ),
    "no answer of the recogniser: on after two": (
        speech(0, 600) + frames(720, 4_000),
        [(100, DUCK), (260, PAUSE), (2_600, RESUME)],
    ),
    "twice no words: silence is what is wanted": (
        [
            *speech(0, 600),
            (760, Words("", final=True)),
            *frames(780, 1_900),
            *speech(2_000, 2_600),
            (2_760, Words("", final=True)),
            *frames(2_780, 3_200),
        ],
        [
            (100, DUCK),
            (260, PAUSE),
            (1_100, RESUME),
            (2_100, DUCK),
            (2_260, PAUSE),
            (3_100, INTERRUPT),
        ],
    ),
    "its own echo": (speech(0, 5_000, ECHO), []),
    "its own echo, recognised": (
        [*speech(0, 900, ECHO)[:-1], (800, Words("the capital of France"))],
        [],
    ),
    "an echo that is noticed late": (
        [*speech(0, 60)[:-1], *frames(160, 900, ECHO)],
        [(100, DUCK), (200, UNDUCK)],
    ),
    "speech that resembles the answer for a moment": (
        [*speech(0, 60)[:-1], (160, ECHO), (180, ECHO), *frames(200, 300)],
        [(100, DUCK), (260, PAUSE)],
    ),
    "somebody speaks through the echo": (
        [*speech(0, 900, ECHO)[:-1], *frames(1_000, 1_500)],
        [(1_000, DUCK), (1_240, PAUSE)],
    ),
    "people in the background": (speech(0, 3_000, FAR), []),
    "a protected passage": (
        [(0, Protected(True)), *speech(10, 900), (1_000, Words("stop it", final=True))],
        [],
    ),
    "a passage that becomes protected": (
        [*speech(0, 600)[:-1], (700, Protected(True)), *frames(720, 900)],
        [(100, DUCK), (260, PAUSE), (700, RESUME)],
    ),
    "after a protected passage": (
        [(0, Protected(True)), *speech(0, 600)[:-1], (700, Protected(False)), *frames(720, 760)],
        [(720, DUCK), (740, PAUSE)],
    ),
}


@pytest.mark.parametrize(("script", "log"), TABLE.values(), ids=TABLE)
def test_what_is_done(script: Script, log: Log) -> None:
    assert play(script)[0] == log


def test_the_decision_falls_between_200_and_300_ms() -> None:
    log, _ = play(speech(1_000, 3_000))
    assert log[0] == (1_100, DUCK)
    assert 1_200 <= log[1][0] <= 1_300


@pytest.mark.parametrize(
    "text", ["mhm", "Mm-hmm.", "Uh-huh.", "Yeah.", "Okay!", "I see.", "Oh, ok"]
)
def test_backchannels(text: str) -> None:
    assert not means_to_interrupt(text)


@pytest.mark.parametrize("text", ["stop", "yeah but", "no", "I see it in the garden", "is it"])
def test_interruptions(text: str) -> None:
    assert means_to_interrupt(text)


def test_illegal_moves_raise() -> None:
    with pytest.raises(IllegalBargeInError, match="not started"):
        play([(0, SpeechEnded(0))])
    with pytest.raises(IllegalBargeInError, match="twice"):
        play([(0, SpeechStarted(0)), (10, SpeechStarted(0))])
    _, machine = play([*speech(0, 100)[:-1], (200, Words("stop"))])
    with pytest.raises(IllegalBargeInError, match="after the answer"):
        machine.handle(NEAR, 300 * MS)


INPUTS = st.one_of(
    st.sampled_from([NEAR, ECHO, FAR, Protected(True), Protected(False)]),
    st.builds(Words, st.sampled_from(["", "mhm", "stop"]), st.booleans()),
    st.just(None),
)
FOLLOWS = {
    BargeInState.SPEAKING: {DUCK},
    BargeInState.WEIGHING: {UNDUCK, PAUSE, INTERRUPT},
    BargeInState.YIELDED: {RESUME, INTERRUPT},
}


@settings(deadline=None)
@given(st.lists(INPUTS, max_size=80))
def test_what_is_asked_of_the_playout_is_always_possible(inputs: list[BargeInInput | None]) -> None:
    """None starts or ends speech."""
    machine, is_speech, is_protected = BargeIn(), False, False
    for number, given_input in enumerate(inputs):
        now = number * 100 * MS
        event = given_input
        if event is None:
            event = SpeechEnded(now) if is_speech else SpeechStarted(now)
            is_speech = not is_speech
        is_protected = event.is_on if isinstance(event, Protected) else is_protected
        before = machine.state
        action = machine.handle(event, now)
        assert (action is None) == (machine.state is before)
        assert action is None or action in FOLLOWS[before]
        assert not is_protected or machine.state is BargeInState.SPEAKING
        if machine.state is BargeInState.INTERRUPTED:
            return
