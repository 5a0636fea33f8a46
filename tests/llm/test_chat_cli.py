from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llm.chat_cli import AnswerView, run_chat
from llm.types import (
    Committed,
    Event,
    Finished,
    FinishReason,
    InvalidRequestError,
    Message,
    Provisional,
    Request,
    Revised,
    ToolCall,
    Usage,
)

USAGE = Usage(num_completion_tokens=6, num_forwards=2, first_commit_ms=41.6)
STOP = Finished(FinishReason.STOP, USAGE)
CTRL_C = "ctrl-c"
Step = Event | str


class FakeGeneration:
    """Plays a script; CTRL_C in it presses the key. Ends with CANCELLED once aborted."""

    def __init__(self, script: list[Step], *, deaf: bool = False) -> None:
        self.script = script
        self.deaf = deaf
        self.num_aborts = 0

    async def __aiter__(self) -> AsyncIterator[Event]:
        for step in self.script:
            if isinstance(step, str):
                signal.raise_signal(signal.SIGINT)
                # The loop hears of a signal through a socket, on a later round.
                for _ in range(3):
                    await asyncio.sleep(0)
            elif self.num_aborts and not self.deaf:
                break
            else:
                yield step
        if self.deaf:
            await asyncio.Event().wait()
        if self.num_aborts:
            yield Finished(FinishReason.CANCELLED, USAGE)

    def abort(self) -> None:
        self.num_aborts += 1


class FakeEngine:
    def __init__(self, *answers: FakeGeneration | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    def submit(self, request: Request) -> FakeGeneration:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def lines(*said: str | type[BaseException]) -> Callable[[], str]:
    left = iter(said)

    def read_line() -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read_line


def talk(
    engine: FakeEngine,
    *said: str | type[BaseException],
    terminal: bool = False,
    system_prompt: str | None = None,
) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system="standard")
    run_chat(engine, lines(*said), console, system_prompt=system_prompt)
    return out.getvalue()


def says(*pieces: str) -> FakeGeneration:
    return FakeGeneration([*map(Committed, pieces), STOP])


def test_history_grows_by_what_was_said_and_answered() -> None:
    engine = FakeEngine(says("Hi", " there."), says("Fine."))
    out = talk(engine, "Hello", "  ", "How are you?", system_prompt="Be kind.")
    assert out == "Hi there.\nFine.\n\n"
    assert engine.requests[1].messages == (
        Message("system", "Be kind."),
        Message("user", "Hello"),
        Message("assistant", "Hi there."),
        Message("user", "How are you?"),
    )


def test_new_forgets_and_quit_ends() -> None:
    engine = FakeEngine(says("One."), says("Two."))
    talk(engine, "1", "/new", "2", "/quit", "3")
    assert engine.requests[1].messages == (Message("user", "2"),)
    assert len(engine.requests) == 2


def test_a_pipe_gets_committed_text_only() -> None:
    script: list[Step] = [Provisional(0, "Hu"), Committed("[b]Hi"), Revised(5, "x"), STOP]
    assert talk(FakeEngine(FakeGeneration(script)), "a") == "[b]Hi\n\n"


def test_a_terminal_sees_the_answer_and_its_cost() -> None:
    call = ToolCall("c1", "clock", "{}")
    script: list[Step] = [Provisional(0, "Hu"), call, Committed("[b]Hi"), STOP]
    out = talk(FakeEngine(FakeGeneration(script)), "a", terminal=True)
    assert "[b]Hi" in out
    assert "clock({})" in out
    assert "3.00 tokens per forward, first text after 42 ms" in out


def test_an_engine_error_is_shown_and_the_chat_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = FakeGeneration([Finished(FinishReason.ERROR, USAGE, "the worker died")])
    engine = FakeEngine(InvalidRequestError("too long"), failed, says("Yes."))
    out = talk(engine, "1", "2", "3")
    assert out.endswith("Yes.\n\n")
    assert capsys.readouterr().err == (
        "error: too long (/new forgets the conversation)\nerror: the worker died\n"
    )
    assert engine.requests[2].messages == (Message("user", "3"),), "failed turns leave no trace"


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_aborts_the_answer_and_keeps_what_was_shown(terminal: bool) -> None:
    cut = FakeGeneration([Committed("Once upon"), CTRL_C, Committed(" never")])
    engine = FakeEngine(cut, says("Yes."))
    out = talk(engine, "a story", "still there?", terminal=terminal)
    assert cut.num_aborts == 1
    assert "never" not in out
    assert "Yes." in out
    assert engine.requests[1].messages[1] == Message("assistant", "Once upon")


def test_a_second_ctrl_c_leaves_even_if_the_engine_is_deaf() -> None:
    deaf = FakeGeneration([Committed("Once"), CTRL_C, CTRL_C], deaf=True)
    engine = FakeEngine(deaf)
    assert talk(engine, "a story", "still there?") == "Once\n"
    assert len(engine.requests) == 1
    assert deaf.num_aborts == 1


def test_ctrl_c_at_the_prompt_leaves() -> None:
    engine = FakeEngine()
    talk(engine, KeyboardInterrupt, "never")
    assert engine.requests == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


VIEW_STEPS = [
    ("a guess is dim", [Provisional(0, "abc")], "", "abc"),
    ("a later guess replaces it", [Provisional(0, "abc"), Provisional(0, "x")], "", "x"),
    ("part of it comes true", [Provisional(0, "abc"), Committed("ab")], "ab", "c"),
    ("another text comes true", [Provisional(0, "abc"), Committed("ax")], "ax", ""),
    ("more than the guess comes true", [Provisional(0, "a"), Committed("abc")], "abc", ""),
    ("a guess is revised", [Committed("ab"), Provisional(2, "cd"), Revised(3, "x")], "ab", "cx"),
]


@pytest.mark.parametrize(
    ("events", "committed", "guess"), [s[1:] for s in VIEW_STEPS], ids=[s[0] for s in VIEW_STEPS]
)
def test_the_view(
    events: list[Committed | Provisional | Revised], committed: str, guess: str
) -> None:
    view = AnswerView()
    for event in events:
        view.apply(event)
    assert (view.committed, view.guess) == (committed, guess)
    drawn = view.drawn()
    assert drawn.plain == committed + guess
    dim = [drawn.plain[s.start : s.end] for s in drawn.spans if s.style == "dim"]
    assert "".join(dim) == guess


@given(st.lists(st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3), st.integers(0, 3))))
def test_committed_text_never_changes(steps: list[tuple[str, str, int]]) -> None:
    view = AnswerView()
    said = ""
    for piece, guess, ahead in steps:
        view.apply(Provisional(len(said), guess))
        view.apply(Revised(len(said) + min(ahead, len(guess)), piece))
        view.apply(Committed(piece))
        said += piece
        assert view.committed == said
