"""Takes calls of tools out of the text: what is said goes on, a call becomes one event.

In: text events in order. Out: the same without calls, and a ToolCall for each call, when it is
complete. Text that may become a call is held back until it is clear.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm.grammar import CALL_CLOSES, CALL_OPENS
from llm.types import Committed, Event, Provisional, Revised, ToolCall

_ID_ALPHABET = string.ascii_letters + string.digits


class ToolStream:
    """One answer."""

    def __init__(self) -> None:
        self._held = ""
        self._is_call = False
        self.num_calls = 0

    def filter(self, events: Sequence[Event]) -> list[Event]:
        """What the reader gets of these events."""
        out: list[Event] = []
        for event in events:
            match event:
                case Committed():
                    out += self._take(event)
                case Provisional() | Revised():
                    # A guess is shown while everything before it was said, and not called.
                    if not (self._held or self._is_call or self.num_calls):
                        out.append(replace(event, text=event.text.split("<")[0]))
                case _:
                    out.append(event)
        return out

    def finish(self, *, cut_off: bool = False) -> list[Event]:
        """What was held back and became no call; what was cut off in a call or its tag is nothing.

        cut_off: whether the text would have gone on.
        """
        held, self._held = self._held, ""
        return [Committed(held)] if held and not (self._is_call or cut_off) else []

    def _take(self, event: Committed) -> Iterator[Event]:
        self._held += event.text
        said, calls = "", []
        while True:
            if self._is_call:
                body, closes, rest = self._held.partition(CALL_CLOSES)
                if not closes:
                    break
                self._held, self._is_call = rest.removeprefix("\n"), False
                if (call := _call(body)) is None:
                    said += CALL_OPENS + body + CALL_CLOSES
                else:
                    self.num_calls += 1
                    calls.append(call)
            else:
                before, opens, rest = self._held.partition(CALL_OPENS)
                if not opens:
                    kept = _possible_opening(self._held)
                    said += self._held[: len(self._held) - kept]
                    self._held = self._held[len(self._held) - kept :]
                    break
                said += before
                self._held, self._is_call = rest, True
        if self.num_calls and not said.strip():
            said = ""
        if said or event.logprobs:
            yield Committed(said, event.logprobs)
        yield from calls


def _possible_opening(text: str) -> int:
    """How many characters at the end may be the beginning of a call."""
    longest = min(len(text), len(CALL_OPENS) - 1)
    return next((n for n in range(longest, 0, -1) if CALL_OPENS.startswith(text[-n:])), 0)


def _call(body: str) -> ToolCall | None:
    """The call in the text between the tags; None where it is none after all."""
    try:
        call = json.loads(body)
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return None
    call_id = "call_" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(24))
    return ToolCall(call_id, call["name"], arguments)
