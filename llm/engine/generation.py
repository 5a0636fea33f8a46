"""What a caller holds of its request: the events, as they come, and the means to steer it.

The reader lives on an event loop, the engine's worker in a thread; this file is where they meet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from llm.types import Event, Finished


class Generation(AsyncIterator[Event]):
    """The events of one request, ending after exactly one `Finished`. For one reader.

    buffered_ms: how much spoken audio is ready but not yet heard; a voice session keeps it up to
    date, and the engine chooses the length of the next block by it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._done = False
        self._aborted = threading.Event()
        self.buffered_ms: float | None = None

    def abort(self) -> None:
        """Ask the engine to stop at its next step; `Finished(CANCELLED)` still comes."""
        self._aborted.set()

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted.is_set()

    async def __anext__(self) -> Event:
        """The next event; StopAsyncIteration after `Finished`."""
        if self._done:
            raise StopAsyncIteration
        event = await self._events.get()
        self._done = isinstance(event, Finished)
        return event

    def put(self, event: Event) -> None:
        """Called by the worker thread. A reader whose loop is gone has gone away: abort."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            self.abort()
