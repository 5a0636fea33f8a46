"""How hard a model should think, from a client's word for it to budgets; a table, pure.

`reasoning_effort` has seven names at OpenAI and four at Inception. A model that does not think
takes them all and spends nothing: an effort is a wish, not a promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effort = Literal["none", "instant", "minimal", "low", "medium", "high", "xhigh", "max"]

DEFAULT: Effort = "medium"

MIN_ANSWER_TOKENS = 256
"""What thinking leaves for the answer at least; of a smaller budget, half."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What an effort buys.

    thinking_tokens: at most. threshold: how probable a token is, 0 to 1, before its mask is
    revealed. edit_passes: how often a finished block is looked over again.
    """

    thinking_tokens: int
    threshold: float
    edit_passes: int


_INSTANT = Depth(0, 0.8, 0)
_HIGH = Depth(8192, 0.95, 2)

DEPTHS: dict[Effort, Depth] = {
    "none": _INSTANT,
    "instant": _INSTANT,
    "minimal": _INSTANT,
    "low": Depth(512, 0.85, 0),
    "medium": Depth(2048, 0.9, 1),
    "high": _HIGH,
    "xhigh": _HIGH,
    "max": _HIGH,
}
"""Monotone: more effort never buys less."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How a limit is shared between thinking and the answer, in tokens."""

    thinking: int
    answer: int


def share(max_tokens: int, effort: Effort | None, *, can_think: bool) -> Budget:
    """Share `max_tokens`, 1 or more, so that an answer always has room.

    effort: None = the default. can_think: whether the model was taught to.
    """
    assert max_tokens >= 1, "checked at the door"
    wanted = DEPTHS[effort or DEFAULT].thinking_tokens if can_think else 0
    kept = min(MIN_ANSWER_TOKENS, (max_tokens + 1) // 2)
    thinking = min(wanted, max_tokens - kept)
    return Budget(thinking, max_tokens - thinking)


def summary(wanted: bool | None) -> dict[str, str | None] | None:
    """What `reasoning_summary` of an answer says of a model that did not think; None if unasked."""
    return {"content": None, "status": "unavailable"} if wanted else None
