from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.playout import (
    DUCKED_GAIN,
    FADE_MS,
    RAMP_MS,
    IllegalPlayoutError,
    Playout,
    PlayoutState,
)

RATE_HZ = 8_000
PACKET = 160
FADE = FADE_MS * RATE_HZ // 1_000
"""At 8 kHz one output sample is two of the call."""


def mark(turn: int, num_samples: int) -> np.ndarray:
    """Samples that tell whose they are: the turn is the fraction, whatever the gain is not."""
    return np.full(num_samples, turn / 1_024, np.float32)


class Line:
    """A transport that takes a packet every 20 ms."""

    def __init__(self, *, keeps_time: bool = True, lead_ms: int = 0) -> None:
        self.playout = Playout(RATE_HZ, keeps_time=keeps_time, lead_ms=lead_ms)
        self.now = 0

    def play(self, num_packets: int = 1) -> np.ndarray:
        packets = []
        for _ in range(num_packets):
            packets.append(self.playout.take(PACKET, self.now))
            self.now += PACKET * 2
        return np.concatenate(packets)

    def begin(self, turn: int, num_samples: int = 8_000) -> None:
        self.playout.begin(turn)
        self.playout.add(turn, mark(turn, num_samples))


def in_state(state: PlayoutState) -> Line:
    line = Line()
    if state is not PlayoutState.IDLE:
        line.begin(1)
        line.play(5)
    if state is PlayoutState.DUCKED:
        line.playout.duck()
    if state is PlayoutState.PAUSED:
        line.playout.pause(line.now)
    return line


MOVES: dict[str, Callable[[Line], object]] = {
    "begin": lambda line: line.playout.begin(2),
    "duck": lambda line: line.playout.duck(),
    "unduck": lambda line: line.playout.unduck(),
    "pause": lambda line: line.playout.pause(line.now),
    "resume": lambda line: line.playout.resume(0),
    "stop": lambda line: line.playout.stop(line.now),
}
TABLE = {
    (PlayoutState.IDLE, "begin"): PlayoutState.PLAYING,
    (PlayoutState.PLAYING, "duck"): PlayoutState.DUCKED,
    (PlayoutState.PLAYING, "pause"): PlayoutState.PAUSED,
    (PlayoutState.PLAYING, "stop"): PlayoutState.IDLE,
    (PlayoutState.DUCKED, "unduck"): PlayoutState.PLAYING,
    (PlayoutState.DUCKED, "pause"): PlayoutState.PAUSED,
    (PlayoutState.DUCKED, "stop"): PlayoutState.IDLE,
    (PlayoutState.PAUSED, "resume"): PlayoutState.PLAYING,
    (PlayoutState.PAUSED, "stop"): PlayoutState.IDLE,
}


@pytest.mark.parametrize("state", PlayoutState)
@pytest.mark.parametrize("move", MOVES)
def test_every_move_in_every_state(state: PlayoutState, move: str) -> None:
    line = in_state(state)
    if (after := TABLE.get((state, move))) is None:
        with pytest.raises(IllegalPlayoutError):
            MOVES[move](line)
        assert line.playout.state is state
    else:
        MOVES[move](line)
        assert line.playout.state is after


def test_200_random_interruptions_let_no_sample_of_an_old_turn_through() -> None:
    """After the fade nothing of it sounds, whatever is late, and the fade has no step."""
    rng = random.Random(20)
    line = Line(lead_ms=60)
    for turn in range(1, 201):
        line.begin(turn, rng.randrange(1, 6_000))
        for _ in range(rng.randrange(0, 30)):
            match rng.randrange(5):
                case 0:
                    line.playout.add(turn, mark(turn, rng.randrange(0, 900)))
                case 1 if line.playout.state is PlayoutState.PLAYING:
                    line.playout.duck()
                case 2 if line.playout.state is PlayoutState.DUCKED:
                    line.playout.unduck()
                case 3 if line.playout.state is not PlayoutState.PAUSED:
                    line.playout.resume(line.playout.pause(line.now))
            line.play()
        line.playout.stop(line.now)
        assert not line.playout.add(turn, mark(turn, 500)), "what is late is dropped"
        after = line.play(2) * 1_024 / turn
        assert not after[FADE:].any()
        fade = max(1, np.count_nonzero(after))  # shorter where no more of the answer was there
        assert np.abs(np.diff(after)).max() <= np.pi / 2 / fade + 1e-6
        assert not np.isin(line.play(rng.randrange(1, 5)), mark(turn, 1)).any()


def test_a_new_answer_follows_the_fade_of_the_old() -> None:
    line = Line()
    line.begin(8)
    line.play(3)
    line.playout.stop(line.now)
    line.begin(16)
    after = line.play(1)
    assert after[0] == pytest.approx(8 / 1_024, rel=0.01)
    np.testing.assert_allclose(after[FADE:], 16 / 1_024)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["play", "add", "duck", "unduck", "pause"]), st.integers(0, 1_500)),
    max_size=40,
)


@settings(deadline=None)
@given(OPERATIONS, st.booleans(), st.sampled_from([0, 60]))
def test_heard_never_exceeds_what_was_sent_and_never_goes_back(
    operations: list[tuple[str, int]], keeps_time: bool, lead_ms: int
) -> None:
    line = Line(keeps_time=keeps_time, lead_ms=lead_ms)
    line.begin(1, 400)
    num_given, last = 400, 0
    for name, amount in operations:
        match name:
            case "play":
                line.play()
            case "add":
                line.playout.add(1, mark(1, amount))
                num_given += amount
            case "duck" if line.playout.state is PlayoutState.PLAYING:
                line.playout.duck()
            case "unduck" if line.playout.state is PlayoutState.DUCKED:
                line.playout.unduck()
            case "pause":
                line.playout.resume(line.playout.pause(line.now))
        heard = line.playout.heard(line.now)
        assert last <= heard <= num_given
        assert line.playout.buffered_ms(line.now) == (num_given - heard) / 8
        last = heard
    line.playout.finish(1)
    line.play(num_given // PACKET + 60 * 8 // PACKET + 3)
    while not line.playout.has_ended(line.now):
        line.now += PACKET * 2
        assert line.now < 10_000_000
    assert line.playout.state is PlayoutState.IDLE


def test_the_clock_knows_the_lead_and_the_gaps() -> None:
    line = Line(lead_ms=60)
    line.begin(1, 2 * PACKET)
    line.play(4)  # two packets of sound and two of nothing
    assert line.playout.num_starved == 2 * PACKET
    assert line.playout.heard(60 * 16) == 0
    assert line.playout.heard(70 * 16) == 80
    assert line.playout.heard(100 * 16) == 2 * PACKET
    line.playout.add(1, mark(1, PACKET))
    line.play(1)
    assert line.playout.heard((80 + 60) * 16) == 2 * PACKET
    assert line.playout.heard((80 + 60 + 10) * 16) == 2 * PACKET + 80


def test_a_client_that_keeps_time_gets_all_at_once_and_unshaped() -> None:
    line = Line(keeps_time=False)
    line.begin(8, 100)
    line.playout.duck()
    np.testing.assert_array_equal(line.playout.take(8_000, 0), mark(8, 100))
    assert line.playout.take(8_000, 0).size == 0
    line.playout.add(8, mark(8, 700))
    line.playout.take(8_000, 0)
    assert line.playout.heard(1_000) == 500
    line.playout.report(200, 1_000)
    assert line.playout.heard(1_000) == 200
    assert line.playout.heard(1_200) == 300
    assert line.playout.stop(1_200) == 300
    assert line.playout.take(8_000, 1_200).size == 0


def test_resuming_goes_on_with_the_first_sample_that_was_not_heard() -> None:
    line = Line(lead_ms=60)
    line.playout.begin(1)
    ramp = np.linspace(0.1, 0.9, 8_000, dtype=np.float32)
    line.playout.add(1, ramp)
    line.play(10)
    heard = line.playout.pause(line.now)
    assert line.playout.heard(line.now) == 7 * PACKET, "three packets are still under way"
    assert heard == 10 * PACKET, "and will be heard"
    assert not line.play(2)[FADE:].any()
    line.playout.resume(heard)
    again = line.play(4)
    ramped = RAMP_MS * RATE_HZ // 1_000
    assert again[0] < 0.01
    np.testing.assert_allclose(again[ramped:], ramp[heard + ramped : heard + 4 * PACKET], rtol=1e-5)
    assert line.playout.heard(line.now + 60 * 16) == heard + 4 * PACKET


def test_ducking_ramps_down_and_up_again() -> None:
    line = Line()
    line.begin(512)
    assert line.play().max() == 0.5
    line.playout.duck()
    down = line.play(3)
    assert np.all(np.diff(down) <= 0)
    assert down[-1] == pytest.approx(0.5 * DUCKED_GAIN)
    line.playout.unduck()
    up = line.play(3)
    assert np.all(np.diff(up) >= 0)
    assert up[-1] == 0.5


def test_answers_come_in_order_and_end_once() -> None:
    playout = Playout(RATE_HZ, keeps_time=True)
    with pytest.raises(IllegalPlayoutError, match="has not begun"):
        playout.add(1, mark(1, 10))
    playout.begin(3)
    assert playout.turn == 3
    playout.finish(3)
    with pytest.raises(IllegalPlayoutError, match="after its end"):
        playout.add(3, mark(3, 1))
    playout.stop(0)
    with pytest.raises(IllegalPlayoutError, match="after turn 3"):
        playout.begin(3)
