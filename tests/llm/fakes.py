"""An engine without a model, and a server for an application on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import uvicorn

from llm.types import Committed, Event, Finished, FinishReason, Request, Usage

USAGE = Usage(num_prompt_tokens=7, num_completion_tokens=3, num_forwards=2)
STOP = Finished(FinishReason.STOP, USAGE)


class FakeGeneration:
    """Gives the events, then waits for an abort if no Finished is among them."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.loop = asyncio.get_running_loop()
        self.aborted = asyncio.Event()
        self.finished = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            self.finished = isinstance(event, Finished)
            yield event
        if not self.finished:
            await self.aborted.wait()
            self.finished = True
            yield Finished(FinishReason.CANCELLED, USAGE)

    def abort(self) -> None:
        self.aborted.set()


class FakeEngine:
    """Answers every request with the same events, or raises."""

    context_length = 2048

    def __init__(self, *events: Event, error: Exception | None = None) -> None:
        self.events = events or (Committed("Hello"), Committed(" there."), STOP)
        self.error = error
        self.requests: list[Request] = []
        self.generations: list[FakeGeneration] = []
        self.submitted = threading.Event()

    def token_bytes(self, token_id: int) -> bytes:
        return f"<{token_id}>".encode()

    def submit(self, request: Request) -> FakeGeneration:
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        self.generations.append(FakeGeneration(self.events))
        self.submitted.set()
        return self.generations[-1]


@contextlib.contextmanager
def live(app: Any, **settings: Any) -> Iterator[int]:
    """Serve `app` on a free port of loopback, which is given."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, ws="websockets-sansio", **settings
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def asking(port: int, path: str, body: object) -> Iterator[socket.socket]:
    """A client that has posted a body and hangs up at the end of the block."""
    content = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}"
        client.sendall(head.encode() + b"\r\n\r\n" + content)
        yield client


def comes_true(condition: Callable[[], bool], visit: Callable[[], object]) -> bool:
    """Whether it is so after some visits; what the server's loop does, it does between them."""
    for _ in range(200):
        visit()
        if condition():
            return True
    return False
