"""`ember chat`: a conversation in the terminal in which the answer is seen taking shape.

Committed text is drawn plainly, guesses dim until they are committed or withdrawn. Where the
output is not a terminal, only committed text is written, as it comes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from llm.types import (
    Committed,
    Event,
    Finished,
    InvalidRequestError,
    Message,
    Provisional,
    QueueFullError,
    Request,
    Revised,
    ToolCall,
    Usage,
)

# Text that changes more often than this only flickers.
_REFRESHES_PER_S = 15


class Generation(Protocol):
    """The events of one request, the last of them Finished."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events as they come."""
        ...

    def abort(self) -> None:
        """Stop at the next step; Finished still follows."""
        ...


class Engine(Protocol):
    """What answers: see llm.engine."""

    def submit(self, request: Request) -> Generation:
        """Admit a request. Raises InvalidRequestError or QueueFullError."""
        ...


@dataclass(slots=True)
class AnswerView:
    """What can be seen of an answer: committed text, and behind it the present guess."""

    committed: str = ""
    guess: str = ""

    def apply(self, event: Committed | Provisional | Revised) -> None:
        """Take in one event of the answer."""
        seen = self.committed + self.guess
        match event:
            case Committed(text):
                self.committed += text
                # A guess that came true in its first part stays for the rest, another one is void.
                if not seen.startswith(self.committed):
                    seen = self.committed
            case Provisional(start, text) | Revised(start, text):
                seen = seen[:start] + text
        self.guess = seen[len(self.committed) :]

    def drawn(self) -> Text:
        """The answer as it should look now."""
        return Text.assemble(self.committed, (self.guess, "dim"))


def run_chat(
    engine: Engine,
    read_line: Callable[[], str],
    console: Console,
    *,
    system_prompt: str | None = None,
    max_new_tokens: int = 256,
) -> None:
    """Talk until the input ends or says `/quit`; `/new` forgets the conversation.

    engine: what answers. read_line: the user's next line, EOFError at the end. console: where
    answers are drawn. system_prompt: said to the model first. max_new_tokens: of one answer.
    Ctrl-C aborts the answer under way; a second one, or one at the prompt, leaves.
    """
    system = () if system_prompt is None else (Message("system", system_prompt),)
    history = system
    try:
        while (line := read_line().strip()) != "/quit":
            if line == "/new":
                history = system
            elif line:
                asked = (*history, Message("user", line))
                request = Request(asked, max_new_tokens=max_new_tokens)
                if answer := asyncio.run(_answer(engine, request, console)):
                    history = (*asked, Message("assistant", answer))
    except (EOFError, KeyboardInterrupt):
        console.print()


def read_line_from_terminal() -> str:
    """The user's next line, asked for with a prompt in a terminal. Raises EOFError."""
    return input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "")


async def _answer(engine: Engine, request: Request, console: Console) -> str:
    """Show one answer and return its committed text, empty if there is none."""
    try:
        generation = engine.submit(request)
    except (InvalidRequestError, QueueFullError) as error:
        typer.echo(f"error: {error} (/new forgets the conversation)", err=True)
        return ""
    # The iterator must not be cancelled: the engine still owes Finished after an abort.
    interrupts = _Interrupts(generation)
    # Closing the loop, at the end of the answer, gives Ctrl-C its usual meaning back.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupts.interrupt)
    try:
        draw = _draw_live if console.is_terminal else _write_committed
        text, finished = await draw(generation, console)
    except asyncio.CancelledError:
        if interrupts.count < 2:
            raise
        raise KeyboardInterrupt from None
    _conclude(finished, console)
    return text.strip()


class _Interrupts:
    """Ctrl-C while an answer is under way: the first aborts it, the second gives up on it."""

    def __init__(self, generation: Generation) -> None:
        self.count = 0
        self._generation = generation
        self._task = asyncio.current_task()

    def interrupt(self) -> None:
        self.count += 1
        if self.count == 1:
            self._generation.abort()
        elif self._task is not None:
            self._task.cancel()


async def _draw_live(generation: Generation, console: Console) -> tuple[str, Finished]:
    view = AnswerView()
    with Live(console=console, refresh_per_second=_REFRESHES_PER_S) as live:
        async for event in generation:
            match event:
                case Committed() | Provisional() | Revised():
                    view.apply(event)
                    live.update(view.drawn())
                case ToolCall():
                    live.console.print(_call(event), style="dim", markup=False, highlight=False)
                case Finished():
                    live.update(Text(view.committed))
                    return view.committed, event
    raise _unfinished()


async def _write_committed(generation: Generation, console: Console) -> tuple[str, Finished]:
    text = ""
    async for event in generation:
        match event:
            case Committed(piece):
                text += piece
                console.file.write(piece)
                console.file.flush()
            case ToolCall():
                console.file.write(_call(event) + "\n")
            case Finished():
                console.file.write("\n")
                return text, event
            case Provisional() | Revised():
                pass
    raise _unfinished()


def _conclude(finished: Finished, console: Console) -> None:
    if finished.error is not None:
        typer.echo(f"error: {finished.error}", err=True)
    elif console.is_terminal:
        console.print(_cost(finished.usage), style="dim", highlight=False)


def _cost(usage: Usage) -> str:
    cost = f"{usage.tokens_per_forward:.2f} tokens per forward"
    if usage.first_commit_ms is not None:
        cost += f", first text after {usage.first_commit_ms:.0f} ms"
    return cost


def _call(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def _unfinished() -> AssertionError:
    return AssertionError("the engine ended a generation without Finished")
