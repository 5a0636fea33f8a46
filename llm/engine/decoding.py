"""How masks are revealed where drafts are not verified, read from one setting.

`threshold=0.9` names a policy and its number; behind it `edit=0.5` replaces revealed tokens,
`remask=0.3` masks what came in with doubt once more, and `guards` look for garbled words,
repetitions and loops. Where all rows see each other, `reuse=prefix` or `reuse=dual` keeps keys and
values of earlier forwards, which is faster and not exact; `reuse=dual:4` computes everything anew
in every fourth forward. Knows nothing of sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm.config import ConfigError
from llm.engine.editing import EditRule
from llm.engine.full_canvas import Reuse
from llm.engine.guards import GuardRule
from llm.engine.policy import (
    Credit,
    EntropyBound,
    Factor,
    FixedSteps,
    Hierarchical,
    Policy,
    Threshold,
)

POLICIES: dict[str, Callable[[float], Policy]] = {
    "threshold": Threshold,
    "factor": Factor,
    "entropy": EntropyBound,
    "credit": Credit,
    "hierarchical": Hierarchical,
    "steps": lambda steps: FixedSteps(int(steps)),
}


@dataclass(frozen=True, slots=True)
class Decoding:
    """A policy, the second thoughts about what it revealed (None = none), and what is reused.

    reuse, refresh_interval: as in FullCanvas.
    """

    policy: Policy
    editing: EditRule | None = None
    guards: GuardRule | None = None
    reuse: Reuse = Reuse.EXACT
    refresh_interval: int = 0


def read_decoding(setting: str) -> Decoding:
    """Read the setting, such as "entropy=0.3 edit=0.5 guards" or "threshold=0.9 reuse=prefix:4".

    Raises ConfigError where a word is unknown, doubled or has an impossible value.
    """
    words: dict[str, float] = {}
    reuse, interval = Reuse.EXACT, 0
    for word in setting.split():
        name, has_value, value = word.partition("=")
        try:
            if name in words or bool(has_value) == (name == "guards"):
                raise ValueError
            if name == "reuse":
                reuse, interval = _reuse(value)
                value = "0"
            words[name] = float(value or 0)
        except ValueError as error:
            raise _unreadable(setting, f"'{word}' is not a word of it") from error
    policies = [name for name in words if name in POLICIES]
    unknown = set(words) - {*POLICIES, "edit", "remask", "guards", "reuse"}
    if unknown or len(policies) != 1:
        raise _unreadable(setting, "it names one policy, and optional second thoughts and reuse")
    try:
        policy = POLICIES[policies[0]](words[policies[0]])
        return Decoding(policy, _editing(words), _guards(words), reuse, interval)
    except ValueError as error:
        raise _unreadable(setting, str(error)) from error


def _reuse(value: str) -> tuple[Reuse, int]:
    """What is reused, and the forwards until a refresh, 0 = at the beginning of blocks only."""
    name, has_interval, interval = value.partition(":")
    reuse = Reuse(name)
    if not has_interval:
        return reuse, 0
    if reuse is Reuse.EXACT or not interval.isdecimal() or int(interval) < 1:
        raise ValueError
    return reuse, int(interval)


def _editing(words: dict[str, float]) -> EditRule | None:
    remask = words.get("remask", 0.0)
    if "edit" in words:
        return EditRule(words["edit"], remask_below=remask)
    return EditRule(budget=0, remask_below=remask) if remask else None


def _guards(words: dict[str, float]) -> GuardRule | None:
    return GuardRule() if "guards" in words else None


def _unreadable(setting: str, why: str) -> ConfigError:
    names = ", ".join(f"{name}=N" for name in POLICIES)
    return ConfigError(
        f"setting 'decoding' is '{setting}', but {why}; "
        f"one of {names}, then edit=P, remask=P, guards, reuse=prefix or reuse=dual:N"
    )
