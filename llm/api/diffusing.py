"""A choice that is shown while it diffuses: each chunk has the whole answer as it stands now.

Inception's `diffusing: true`. A chunk's content REPLACES that of the chunk before; clients that
append get garbage, so this is told only to those that ask for it. Calls of tools, whose guesses
nobody could use, come as they do otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm.api.chat_chunks import ChatChoice
from llm.api.stream import Completion, Json
from llm.types import Committed, Event, Finished, Provisional, Revised, TokenLogprobs

NEARLY = 0.99
"""The most that is told before the last snapshot: clients take 1.0 for the end."""


class DiffusingChoice:
    """One choice; see `ChatChoice` for the arguments."""

    def __init__(self, completion: Completion, index: int, **extra: Any) -> None:
        self._plain = ChatChoice(completion, index, **extra)
        self._committed = ""
        self._shown = ""

    def begin(self) -> Iterator[Json]:
        """Who speaks, before there is a word."""
        return self._plain.begin()

    def take(self, event: Event) -> Iterator[Json]:
        """What an event changes. Raises ApiError where the answer is not complete."""
        match event:
            case Committed(text, logprobs):
                self._committed += text
                goes_on = self._shown.startswith(self._committed)
                shown = self._shown if goes_on else self._committed
                yield from self._show(shown, logprobs)
            case Provisional(start, text) | Revised(start, text):
                yield from self._show(self._shown[:start] + text)
            case Finished():
                # First, so that an answer that is not complete is never shown as if it were.
                last = list(self._plain.take(event))
                if self._committed:
                    yield self._snapshot(self._committed, 1.0)
                yield from last
            case _:
                yield from self._plain.take(event)

    def _show(self, text: str, logprobs: Sequence[TokenLogprobs] = ()) -> Iterator[Json]:
        """The answer as it stands now, if that is news; how much of it is final goes with it."""
        if text == self._shown and not logprobs:
            return
        self._shown = text
        final = len(self._committed) / len(text) if text else 0.0
        yield self._snapshot(text, min(final, NEARLY), logprobs)

    def _snapshot(self, text: str, progress: float, logprobs: Sequence[TokenLogprobs] = ()) -> Json:
        meta = {"diffusion_progress": round(progress, 4)}
        return self._plain.chunk({"content": text}, logprobs=logprobs, diffusion_meta=meta)
