"""What sounds, of which turn, and how much of it has been heard: one clock for each transport.

    IDLE ─begin▶ PLAYING ◀duck, unduck▶ DUCKED
      ▲             │ pause                │
      │             ▼                      │
      └─ stop ── PAUSED ◀──────────────────┘      PAUSED ─resume▶ PLAYING

Pure: samples in, samples out, and the time in samples of the call at LISTEN_RATE_HZ. An answer is
kept until it ends, so that it can go on from the last sample heard. Two kinds of transport:

- the server gives each sample at its time (WebRTC, telephone): `take` is called for each packet,
  always gives that many samples, and shapes them: fades, and the gain while ducked. What it gave
  will be heard;
- the client keeps the time (WebSocket): `take` gives what there is as fast as there is room; the
  client fades, ducks, throws away what it has when told to stop, and may report how much sounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from voice.events import LISTEN_RATE_HZ, Samples
from voice.seams import cosine_rise

FADE_MS = 15
"""How fast a stopped answer falls silent; cutting it in the middle of a wave clicks."""

RAMP_MS = 30
DUCKED_GAIN = 0.2


class PlayoutState(Enum):
    """What the listener gets."""

    IDLE = auto()
    PLAYING = auto()
    DUCKED = auto()
    """The answer sounds, softly."""
    PAUSED = auto()
    """Silence; the answer may go on from where it was heard to."""


class IllegalPlayoutError(RuntimeError):
    """A move that cannot be made in this state: a mistake of ours."""


@dataclass(slots=True)
class _Answer:
    """samples: all of the answer so far. taken: how many were taken. is_whole: no more will come.

    spans: for each stretch that was sent without a gap, when it starts to sound, in output
    samples, the position of its first sample in the answer, and its length.
    """

    turn: int
    samples: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    taken: int = 0
    is_whole: bool = False
    spans: list[tuple[int, int, int]] = field(default_factory=list)

    def sent(self, at: int, num_samples: int) -> None:
        """Note samples that will sound as soon as possible from `at` on."""
        if not num_samples:
            return
        start, position, length = self.spans[-1] if self.spans else (at, self.taken, 0)
        if at > start + length or position + length != self.taken:
            start, position, length = max(at, start + length), self.taken, 0
            self.spans.append((start, position, 0))
        self.spans[-1:] = [(start, position, length + num_samples)]
        self.taken += num_samples

    def heard(self, now: int) -> int:
        """The position up to which it has been heard."""
        heard = 0
        for start, position, length in self.spans:
            if now > start:
                heard = max(heard, position + min(length, now - start))
        return heard

    def recall(self, now: int) -> int:
        """Take back what was sent but not heard. Returns the position of what is left."""
        heard = self.heard(now)
        self.spans = [(now - heard, 0, heard)]
        return heard


class Playout:
    """Plays one answer after the other.

    rate_hz: of the samples. keeps_time: whether the server gives each sample at its time, see
    above. lead_ms: from giving a sample until it sounds.
    """

    def __init__(self, rate_hz: int, *, keeps_time: bool, lead_ms: int = 60) -> None:
        self.state = PlayoutState.IDLE
        self.num_starved = 0
        """Samples of silence that had to be given because the answer was late."""
        self._rate_hz = rate_hz
        self._keeps_time = keeps_time
        self._lead = lead_ms * rate_hz // 1_000
        self._last_turn = -1
        self._answer: _Answer | None = None
        self._tail = np.zeros(0, np.float32)
        self._gain = 1.0

    @property
    def turn(self) -> int | None:
        """Whose answer it is; None: nobody's."""
        return None if self._answer is None else self._answer.turn

    def begin(self, turn: int) -> None:
        """An answer will come. Raises IllegalPlayoutError unless IDLE and the turn is newer."""
        self._check("begin", PlayoutState.IDLE)
        if turn <= self._last_turn:
            raise IllegalPlayoutError(f"turn {turn} begins after turn {self._last_turn}")
        self._last_turn = turn
        self._answer = _Answer(turn)
        self._gain = 1.0
        self.state = PlayoutState.PLAYING

    def add(self, turn: int, samples: Samples) -> bool:
        """Add what comes next of an answer; False: it is late, and dropped.

        Raises IllegalPlayoutError for an answer that has not begun, or is whole already.
        """
        if turn > self._last_turn:
            raise IllegalPlayoutError(f"turn {turn} has not begun")
        if self._answer is None or self._answer.turn != turn:
            return False
        if self._answer.is_whole:
            raise IllegalPlayoutError(f"more of turn {turn} after its end")
        self._answer.samples = np.concatenate([self._answer.samples, samples])
        return True

    def finish(self, turn: int) -> None:
        """No more of this answer will come."""
        if self._answer is not None and self._answer.turn == turn:
            self._answer.is_whole = True

    def take(self, num_samples: int, now: int) -> Samples:
        """The next samples for the listener, float32, whose first is sent at `now`.

        Exactly `num_samples` where the server keeps time, else as many as there are up to that.
        """
        tail, self._tail = self._tail[:num_samples], self._tail[num_samples:]
        room = num_samples - len(tail)
        fresh = self._fresh(room, now + self._in_call(len(tail)))
        given = np.concatenate([tail, fresh])
        if not self._keeps_time:
            return given
        answer = self._answer
        is_starved = answer is not None and bool(answer.spans) and not answer.is_whole
        if is_starved and self.state in {PlayoutState.PLAYING, PlayoutState.DUCKED}:
            self.num_starved += num_samples - len(given)
        return np.pad(given, (0, num_samples - len(given)))

    def duck(self) -> None:
        """Become soft. Raises IllegalPlayoutError unless PLAYING."""
        self._check("duck", PlayoutState.PLAYING)
        self.state = PlayoutState.DUCKED

    def unduck(self) -> None:
        """Become as loud as before. Raises IllegalPlayoutError unless DUCKED."""
        self._check("unduck", PlayoutState.DUCKED)
        self.state = PlayoutState.PLAYING

    def pause(self, now: int) -> int:
        """Fall silent; the answer may go on later. Returns how much of it will have been heard.

        Raises IllegalPlayoutError unless PLAYING or DUCKED.
        """
        self._check("pause", PlayoutState.PLAYING, PlayoutState.DUCKED)
        heard = self._cut(now)
        self.state = PlayoutState.PAUSED
        return heard

    def resume(self, at: int) -> None:
        """Go on from position `at` of the answer, which rises from silence.

        at: as `pause` returned it, or earlier, where a word begins.
        Raises IllegalPlayoutError unless PAUSED.
        """
        self._check("resume", PlayoutState.PAUSED)
        answer = self._current
        assert 0 <= at <= answer.taken, (at, answer.taken)
        answer.taken = at
        self._gain = 0.0
        self.state = PlayoutState.PLAYING

    def stop(self, now: int) -> int:
        """Fall silent and forget the answer. Returns how many samples of it will have been heard.

        Raises IllegalPlayoutError if IDLE.
        """
        self._check("stop", PlayoutState.PLAYING, PlayoutState.DUCKED, PlayoutState.PAUSED)
        is_silent = self.state is PlayoutState.PAUSED
        heard = self._left(now) if is_silent else self._cut(now)
        self._answer = None
        self.state = PlayoutState.IDLE
        return heard

    def heard(self, now: int) -> int:
        """How many samples of the answer have been heard; 0 if there is none."""
        return 0 if self._answer is None else self._answer.heard(self._out(now))

    def report(self, num_heard: int, now: int) -> None:
        """The client says how much has sounded; the clock follows it."""
        answer = self._answer
        if answer is None or not answer.spans or self.state is PlayoutState.PAUSED:
            return
        num_heard = min(num_heard, answer.taken)
        at = self._out(now)
        answer.spans = [(at - num_heard, 0, num_heard), (at, num_heard, answer.taken - num_heard)]

    def has_ended(self, now: int) -> bool:
        """Whether the answer is whole and has been heard to its end; it is forgotten then."""
        answer = self._answer
        if answer is None or not answer.is_whole or self.state is PlayoutState.PAUSED:
            return False
        if answer.taken < len(answer.samples) or answer.heard(self._out(now)) < answer.taken:
            return False
        self._answer = None
        self.state = PlayoutState.IDLE
        return True

    def buffered_ms(self, now: int) -> float:
        """How much of the answer is there and has not been heard."""
        if self._answer is None:
            return 0.0
        return (len(self._answer.samples) - self.heard(now)) * 1_000 / self._rate_hz

    def _fresh(self, num_samples: int, now: int) -> Samples:
        answer = self._answer
        if answer is None or self.state is PlayoutState.PAUSED:
            return np.zeros(0, np.float32)
        fresh = answer.samples[answer.taken : answer.taken + num_samples]
        answer.sent(self._out(now) + self._lead, len(fresh))
        return self._shaped(fresh) if self._keeps_time else fresh

    def _shaped(self, samples: Samples) -> Samples:
        """Bring the gain nearer to what the state asks for, at an even pace."""
        target = DUCKED_GAIN if self.state is PlayoutState.DUCKED else 1.0
        step = 1_000 / (RAMP_MS * self._rate_hz)
        ramp = self._gain + np.sign(target - self._gain) * step * np.arange(1, len(samples) + 1)
        low, high = sorted((self._gain, target))
        gains = np.clip(ramp, low, high)
        if len(gains):
            self._gain = float(gains[-1])
        shaped: Samples = (samples * gains).astype(np.float32)
        return shaped

    def _cut(self, now: int) -> int:
        """Let the next samples fade and give no more. Returns how much will have been heard."""
        answer = self._current
        if self._keeps_time and not len(self._tail):
            tail = answer.samples[answer.taken :][: FADE_MS * self._rate_hz // 1_000]
            self._tail = self._shaped(tail)
            self._tail *= cosine_rise(len(tail))[::-1]
        return self._left(now)

    def _left(self, now: int) -> int:
        """Where the answer ends if no more is given."""
        answer = self._current
        return answer.taken if self._keeps_time else answer.recall(self._out(now))

    def _out(self, now: int) -> int:
        return now * self._rate_hz // LISTEN_RATE_HZ

    def _in_call(self, num_samples: int) -> int:
        return num_samples * LISTEN_RATE_HZ // self._rate_hz

    def _check(self, move: str, *allowed: PlayoutState) -> None:
        if self.state not in allowed:
            raise IllegalPlayoutError(f"{move} while {self.state.name}")

    @property
    def _current(self) -> _Answer:
        assert self._answer is not None, self.state
        return self._answer
