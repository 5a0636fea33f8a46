"""A hands-free conversation without a socket: frames from an iterator, what leaves to a function.

    await converse(parts, frames, output, settings=…, history=…, clock=…)

`parts` is a loaded `Assistant.pipeline` (or fakes), `frames` gives float32 frames at 16 kHz, 20 ms
each, as fast as time should pass: `paced` gives a recording in real time. `output(at, what)` gets
everything that would go to the client, with the time of the call in samples: `Send(message)` with
a message of `voice.wire`, `SendAudio(turn, samples)` at `parts.output_rate_hz`, and
`FlushAudio(turn)`. `converse` returns when the frames have ended, with the conversation's counters.

In simulated time `frames` are yielded at once and `clock` stands still, so that only the frames
move the time; between two frames everything that can go on does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np

from voice.conversation import Conversation
from voice.dialogue import History
from voice.endpoint import ENDPOINTING, EndpointSettings
from voice.events import LISTEN_RATE_HZ, Samples
from voice.live import Live, Output, Parts, log_turn
from voice.measures import TurnRecord

FRAME_SAMPLES = LISTEN_RATE_HZ // 50
MAX_HISTORY_CHARACTERS = 8000


async def converse(
    parts: Parts,
    frames: AsyncIterator[Samples],
    output: Callable[[int, Output], None],
    *,
    settings: EndpointSettings = ENDPOINTING,
    history: History | None = None,
    measured: Callable[[TurnRecord], None] = log_turn,
    clock: Callable[[], float] = time.monotonic,
) -> Conversation:
    """Hold a conversation until `frames` end.

    parts: the models. frames: float32 [n] at 16 kHz, paced by whoever gives them. output: gets the
    time in samples and what leaves. settings: when a turn is over. history: the conversation
    before, which grows by this one. measured: gets the record of each turn. clock:
    seconds; one that stands still makes the frames the only time.
    """
    async with asyncio.TaskGroup() as tasks:
        live = Live(
            parts,
            settings,
            history or History(MAX_HISTORY_CHARACTERS),
            turn=0,
            out=lambda what: output(live.now, what),
            start=tasks.create_task,
            has_room=_always,
            measured=measured,
            clock=clock,
        )
        async for frame in frames:
            live.hear(frame)
        live.end()
    return live.conversation


async def paced(samples: Samples, *, speed: float = 1.0) -> AsyncIterator[Samples]:
    """Give frames of 20 ms of a recording when a microphone would; speed: times real time."""
    started = time.monotonic()
    for number, frame in enumerate(frames_of(samples)):
        due = started + (number + 1) * FRAME_SAMPLES / LISTEN_RATE_HZ / speed
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield frame


def frames_of(samples: Samples) -> Iterator[Samples]:
    """Cut a recording into frames of 20 ms, the last filled up with silence."""
    padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))
    yield from padded.reshape(-1, FRAME_SAMPLES)


async def _always() -> None:
    """There is always room."""


def silence(duration_s: float) -> Samples:
    """Nothing to hear, float32 at 16 kHz."""
    return np.zeros(round(duration_s * LISTEN_RATE_HZ), np.float32)
