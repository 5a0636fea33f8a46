"""The words that everything in `llm` shares: requests in, a stream of events out.

Frozen dataclasses that import nothing of ours. The engine's whole output is the closed union
`Event`; whoever reads it matches on the class. Text offsets count characters of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


class InvalidRequestError(ValueError):
    """The caller asked for something that cannot be done; the message says what to change."""


class QueueFullError(RuntimeError):
    """The engine already holds as many requests as it may; the caller should retry later."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    role: who speaks. content: plain text.
    """

    role: Role
    content: str


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one generation cost.

    num_forwards counts forwards of the decode phase (NFE), so that tokens per forward (TPF) is
    comparable with one-token-at-a-time decoding, where it is 1. Times are milliseconds since the
    request was admitted.
    """

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    first_commit_ms: float | None = None
    total_ms: float = 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens committed for each forward of the decode phase (TPF); 0 before the first."""
        return self.num_completion_tokens / self.num_forwards if self.num_forwards else 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    messages: the conversation so far, at least one. max_new_tokens: 1 or more; the context limit
    of the model caps it. stop: strings that end the answer and are not part of it.
    """

    messages: tuple[Message, ...]
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Provisional:
    """A guess: from character `start` on the answer may read `text`. Replaces earlier guesses."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Final text, to be appended to the text committed before. Safe to speak.

    A guess that goes on as this text does keeps its rest; any other guess is withdrawn by it.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Revised:
    """Text shown as provisional was wrong: from character `start` on it now reads `text`."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls a tool: its name and its arguments as a JSON object in text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every accepted request, exactly one.

    error: one sentence for the caller when reason is ERROR, else None.
    """

    reason: FinishReason
    usage: Usage
    error: str | None = None


Event = Provisional | Committed | Revised | ToolCall | Finished
