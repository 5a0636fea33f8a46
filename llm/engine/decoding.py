"""How masks are revealed where drafts are not verified, read from one setting.

`threshold=0.9` names a policy and its number; behind it `edit=0.5` replaces revealed tokens,
`remask=0.3` masks what came in with doubt once more, and `guards` look for garbled words,
repetitions and loops. Knows nothing of sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm.config import ConfigError
from llm.engine.editing import EditRule
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
    """A policy, and the second thoughts about what it revealed; None = none."""

    policy: Policy
    editing: EditRule | None = None
    guards: GuardRule | None = None


def read_decoding(setting: str) -> Decoding:
    """Read the setting, such as "entropy=0.3 edit=0.5 guards".

    Raises ConfigError where a word is unknown, doubled or has an impossible number.
    """
    words: dict[str, float] = {}
    for word in setting.split():
        name, has_number, number = word.partition("=")
        try:
            if name in words or bool(has_number) == (name == "guards"):
                raise ValueError
            words[name] = float(number or 0)
        except ValueError as error:
            raise _unreadable(setting, f"'{word}' is not a word of it") from error
    policies = [name for name in words if name in POLICIES]
    unknown = set(words) - {*POLICIES, "edit", "remask", "guards"}
    if unknown or len(policies) != 1:
        raise _unreadable(setting, "it names one policy, and optional second thoughts")
    try:
        return Decoding(POLICIES[policies[0]](words[policies[0]]), _editing(words), _guards(words))
    except ValueError as error:
        raise _unreadable(setting, str(error)) from error


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
        f"one of {names}, then edit=P, remask=P, guards"
    )
