"""Committed and drafted tokens to text events, with stop strings and split characters held back.

Pure: tokens in, events out. Text that may turn out to be the start of a stop string, or half a
character, is not committed before that is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm.tokenizer import TextDecoder, Tokenizer
from llm.types import Committed, Event, Provisional, Revised


class TextStream:
    """The text side of one generation.

    stop: strings that end the text and are left out of it. `stopped` tells that one was found.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._decoder = TextDecoder(tokenizer)
        self._stop = stop
        self._held = ""
        self._num_committed = 0
        self._shown = ""
        self.stopped = False

    def commit(self, ids: Sequence[int], drafts: Sequence[int] = ()) -> list[Event]:
        """Tokens that are final, and the guesses behind them. Returns what to tell the reader."""
        assert not self.stopped, "nothing follows a stop string"
        self._held += self._decoder.feed(ids)
        text = self._release()
        guess = "" if self.stopped else self._held + self._decoder.peek(drafts)
        return self._events(text, guess)

    def finish(self) -> list[Event]:
        """The generation is over: what was held back is committed."""
        if self.stopped:
            return []
        text = self._held + self._decoder.finish()
        self._held = ""
        return self._events(text, "")

    def _release(self) -> str:
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _events(self, committed: str, guess: str) -> list[Event]:
        """Commit text, then show the guess: as a revision where it withdraws what was shown."""
        events: list[Event] = [Committed(committed)] if committed else []
        self._num_committed += len(committed)
        shown, self._shown = self._shown, guess
        still_shown = shown[len(committed) :] if shown.startswith(committed) else ""
        if guess != still_shown:
            withdrawn = not (committed + guess).startswith(shown)
            kind = Revised if withdrawn else Provisional
            events.append(kind(self._num_committed, guess))
        return events


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper start of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
