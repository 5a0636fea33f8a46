"""One connection with fakes that stall, vanish and talk nonsense. Time never decides a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from llm.types import Message
from tests.voice.session_fakes import ANSWER, HEARD, RATE_HZ, FakePipeline, tone, voice
from voice import wire
from voice.events import TurnOutcome
from voice.session import (
    GOING_AWAY,
    MAX_PENDING_BYTES,
    DisconnectedError,
    Outbox,
    Session,
)
from voice.wire import ErrorCode, parse_server, serialise

START, END, CANCEL, ASK = (
    serialise(message)
    for message in (wire.SpeechStart(), wire.SpeechEnd(), wire.Cancel(), wire.Question("Hi?"))
)


class FakeConnection:
    """The client's side: `say` to the server, `hear` what it sends."""

    def __init__(self) -> None:
        self._up: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._down: asyncio.Queue[str | bytes] = asyncio.Queue()
        self.reads = asyncio.Event()  # cleared: the client takes nothing
        self.reads.set()
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> str | bytes:
        data = await self._up.get()
        if data is None:
            raise DisconnectedError
        return data

    async def send(self, data: str | bytes) -> None:
        await self.reads.wait()
        self._down.put_nowait(data)

    async def close(self, code: int, reason: str) -> None:
        await self.reads.wait()
        self.closed = (code, reason)

    def say(self, *data: str | bytes) -> None:
        for message in data:
            self._up.put_nowait(message)

    def vanish(self) -> None:
        self._up.put_nowait(None)

    async def hear(self) -> wire.ServerMessage | bytes:
        data = await self._down.get()
        return data if isinstance(data, bytes) else parse_server(data)

    async def hear_until(self, kind: type) -> list[Any]:
        heard: list[Any] = []
        while not heard or not isinstance(heard[-1], kind):
            heard.append(await self.hear())
        return heard


Scene = Callable[[FakeConnection, FakePipeline, Session], Awaitable[None]]


def play(scene: Scene, pipeline: FakePipeline | None = None) -> FakeConnection:
    """Run a session against `scene`; the session must end, and leave nothing running."""

    async def main() -> FakeConnection:
        connection, pipe = FakeConnection(), pipeline or FakePipeline()
        session = Session(connection, pipe, max_history_characters=1000)
        running = asyncio.create_task(session.run())
        ready = await connection.hear()
        assert ready == wire.SessionReady(16_000, RATE_HZ)
        await scene(connection, pipe, session)
        session.end(None)
        await running
        assert pipe.num_running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}, "something still runs"
        return connection

    return asyncio.run(main())


def test_a_spoken_question_is_answered_in_text_and_sound() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        client.say(START, b"\1\0\2\0", b"\3\0", END)
        heard = await client.hear_until(wire.TurnDone)
        kinds = [type(m).__name__ for m in heard]
        assert kinds == [
            "Transcript",
            "AnswerProvisional",
            "AnswerRevised",
            "AnswerCommitted",
            "AudioStart",
            "bytes",
            "AnswerProvisional",
            "AnswerCommitted",
            "bytes",
            "AudioEnd",
            "TurnDone",
        ]
        assert heard[0] == wire.Transcript(1, HEARD)
        spoken = np.frombuffer(b"".join(m for m in heard if isinstance(m, bytes)), "<i2")
        expected = np.concatenate([tone(0.1), tone(0.1, 330.0)]) * 32767
        assert np.abs(spoken - expected).max() <= 1
        ((samples, text, history),) = pipe.asked
        assert samples is not None
        assert np.allclose(samples * 32768, [1, 2, 3], atol=0.01)
        assert (text, history) == (None, ())

    play(scene)


def test_the_next_question_knows_the_first() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        for _turn in range(2):
            client.say(ASK)
            await client.hear_until(wire.TurnDone)
        assert pipe.asked[1] == (
            None,
            "Hi?",
            (Message("user", "Hi?"), Message("assistant", "".join(ANSWER))),
        )

    play(scene)


@pytest.mark.parametrize("interruption", [START, ASK, CANCEL])
def test_an_interruption_ends_the_old_answer(interruption: str) -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        client.say(ASK)
        await client.hear_until(wire.AudioStart)
        client.say(interruption)
        heard = await client.hear_until(wire.TurnDone)
        assert (heard[-1].turn, heard[-1].outcome) == (1, TurnOutcome.CANCELLED)
        assert heard[-2] == wire.AudioEnd(1)
        client.say(CANCEL, ASK)
        later = await client.hear_until(wire.AudioStart)
        assert all(m.turn > 1 for m in later if not isinstance(m, bytes))
        assert pipe.num_running == 1

    play(scene, FakePipeline(holds=True))


def test_a_client_that_does_not_read_holds_the_answer_back_and_can_still_interrupt() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.reads.clear()
        client.say(ASK)
        while not pipe.num_running:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert pipe.num_running == 1, "it waits for room instead of filling the memory"
        client.reads.set()
        heard = await client.hear_until(wire.TurnDone)
        assert sum(len(m) for m in heard if isinstance(m, bytes)) > 2 * MAX_PENDING_BYTES

    play(scene, FakePipeline(spoken_s=20.0))


def test_interrupting_forgets_the_sound_that_waits() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.say(ASK)
        await client.hear_until(wire.AnswerCommitted)
        client.reads.clear()
        for _ in range(100):
            await asyncio.sleep(0)
        client.say(CANCEL)
        for _ in range(100):
            await asyncio.sleep(0)
        client.reads.set()
        heard = await client.hear_until(wire.TurnDone)
        assert heard[-1].outcome is TurnOutcome.CANCELLED
        # At most the one message that was being sent already.
        assert sum(isinstance(m, bytes) for m in heard) <= 1

    play(scene, FakePipeline(holds=True, spoken_s=2.0))


@pytest.mark.parametrize("moment", ["idle", "listening", "answering", "stalled"])
def test_a_client_that_vanishes_frees_everything(moment: str) -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        if moment == "listening":
            client.say(START, bytes(1000))
        if moment in {"answering", "stalled"}:
            client.say(ASK)
            await client.hear_until(wire.Transcript)
        if moment == "stalled":
            client.reads.clear()
        client.vanish()
        await asyncio.wait_for(session._ended, 5)

    connection = play(scene, FakePipeline(holds=True))
    assert connection.closed is None


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice.session.SEND_TIMEOUT_S", 0.01)

    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.reads.clear()
        client.say(ASK)
        await asyncio.wait_for(session._ended, 5)

    play(scene, FakePipeline(holds=True))


@pytest.mark.parametrize("stalled", [False, True])
def test_a_shutdown_says_goodbye_if_it_can(stalled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice.session.CLOSE_TIMEOUT_S", 0.01)

    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.say(ASK)
        await client.hear_until(wire.AudioStart)
        if stalled:
            client.reads.clear()
        session.end(GOING_AWAY)

    connection = play(scene, FakePipeline(holds=True))
    assert connection.closed == (None if stalled else (1001, "the server is shutting down"))


NONSENSE: list[str | bytes] = ["{", END, b"\0", "[]", b"\0\0"]


def test_mistakes_are_answered_and_eleven_in_a_row_end_it() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.say(*NONSENSE, *NONSENSE, CANCEL, *NONSENSE, *NONSENSE)
        for _ in range(20):
            error = await client.hear()
            assert isinstance(error, wire.ErrorMessage)
            assert error.code in {
                ErrorCode.BAD_MESSAGE,
                ErrorCode.ILLEGAL_MOVE,
                ErrorCode.BAD_AUDIO,
            }
        client.say(ASK)
        await client.hear_until(wire.TurnDone)
        client.say(*NONSENSE, *NONSENSE, "{")
        await asyncio.wait_for(session._ended, 5)

    connection = play(scene)
    assert connection.closed == (1008, "too many refused messages in a row")


def test_a_bug_in_the_pipeline_fails_the_turn_and_not_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.say(ASK)
        heard = await client.hear_until(wire.TurnDone)
        assert heard[-1].outcome is TurnOutcome.FAILED
        assert heard[-2].code is ErrorCode.TURN_FAILED
        client.say(ASK)
        assert (await client.hear_until(wire.TurnDone))[-1].turn == 2

    play(scene, FakePipeline(breaks=True))
    assert "ZeroDivisionError" in caplog.text


LISTEN, STOP_LISTENING = serialise(wire.ListenStart("")), serialise(wire.ListenStop())
LOUD = (voice(0.02) * 32_767).astype("<i2").tobytes()
QUIET = bytes(len(LOUD))
EVERY_HEARING = (wire.Hearing, wire.AnswerProvisional, wire.AnswerRevised)


def speak(client: FakeConnection) -> None:
    """Half a second of silence, one of speech, half a second of silence, in frames of 20 ms."""
    client.say(*[QUIET] * 25, *[LOUD] * 50, *[QUIET] * 25)


def test_hands_free_speech_is_answered_and_push_to_talk_comes_back() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        client.say(LISTEN)
        speak(client)
        heard = await client.hear_until(wire.TurnDone)
        said = [m for m in heard if not isinstance(m, (*EVERY_HEARING, bytes))]
        assert [type(m).__name__ for m in said] == [
            *["Transcript", "AnswerCommitted", "AudioStart"],
            *["AnswerCommitted", "AudioEnd", "TurnDone"],
        ]
        assert sum(len(m) for m in heard if isinstance(m, bytes)) == 2 * round(0.2 * RATE_HZ)
        client.say(STOP_LISTENING, START, b"\0\0", END)
        heard = await client.hear_until(wire.TurnDone)
        assert heard[-1].turn == 2
        assert pipe.asked[1][0] is not None, "this time the pipeline got the audio"

    play(scene)


def test_frames_that_stop_arriving_end_the_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voice.live.MISSING_AFTER_S", 0.01)
    monkeypatch.setattr("voice.live.FILL_EVERY_S", 0.01)

    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        client.say(LISTEN, *[QUIET] * 25, *[LOUD] * 50)
        await asyncio.wait_for(client.hear_until(wire.TurnDone), 10)

    play(scene)


def test_a_typed_question_and_a_cancel_in_a_hands_free_conversation() -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        client.say(LISTEN, ASK)
        heard = await client.hear_until(wire.AudioStart)
        assert heard[0] == wire.Transcript(1, "Hi?")
        client.say(serialise(wire.Playback(1, 50)), CANCEL)
        heard = await client.hear_until(wire.TurnDone)
        assert heard[-1].outcome is TurnOutcome.CANCELLED
        (stopped,) = [m for m in heard if isinstance(m, wire.AudioStop)]
        assert ANSWER[0].startswith(stopped.heard)

    play(scene, FakePipeline(holds=True))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([serialise(wire.ListenStart("very"))], ErrorCode.BAD_MESSAGE),
        ([STOP_LISTENING], ErrorCode.ILLEGAL_MOVE),
        ([serialise(wire.Playback(1, 5))], ErrorCode.ILLEGAL_MOVE),
        ([LISTEN, LISTEN], ErrorCode.ILLEGAL_MOVE),
        ([LISTEN, START], ErrorCode.ILLEGAL_MOVE),
        ([LISTEN, b"\0"], ErrorCode.BAD_AUDIO),
        ([LISTEN, bytes(32_002)], ErrorCode.BAD_AUDIO),
    ],
)
def test_what_has_no_place_while_listening(said: list[str | bytes], code: ErrorCode) -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, _: Session) -> None:
        client.say(*said)
        error = await client.hear()
        assert isinstance(error, wire.ErrorMessage)
        assert error.code is code

    play(scene)


@pytest.mark.parametrize("moment", ["speaking", "answering", "waiting"])
def test_a_client_that_vanishes_hands_free_frees_everything(moment: str) -> None:
    async def scene(client: FakeConnection, pipe: FakePipeline, session: Session) -> None:
        client.say(LISTEN)
        if moment == "speaking":
            client.say(*[LOUD] * 30)
            await client.hear_until(wire.Hearing)
        if moment == "answering":
            speak(client)
            await client.hear_until(wire.AudioStart)
        client.vanish()
        await asyncio.wait_for(session._ended, 5)

    play(scene, FakePipeline(holds=True))


def test_outbox_counts_what_is_pending() -> None:
    async def main() -> None:
        outbox = Outbox(max_pending_bytes=10)
        outbox.add("x" * 4)
        outbox.add(b"y" * 6)
        waiting = asyncio.create_task(outbox.has_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.drop_audio()
        await waiting
        assert await outbox.take() == "xxxx"
        taking = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)
        outbox.add(b"dropped")
        outbox.drop_audio()
        await asyncio.sleep(0)
        outbox.add("kept")
        assert await taking == "kept"

    asyncio.run(main())
