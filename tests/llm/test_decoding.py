"""The setting that names how masks are revealed: what it means, and what it refuses."""

from __future__ import annotations

import pytest

from llm.config import ConfigError
from llm.engine.decoding import POLICIES, Decoding, read_decoding
from llm.engine.editing import EditRule
from llm.engine.full_canvas import Reuse
from llm.engine.guards import GuardRule
from llm.engine.policy import (
    Credit,
    EntropyBound,
    Factor,
    FixedSteps,
    Hierarchical,
    Threshold,
)


@pytest.mark.parametrize(
    ("setting", "decoding"),
    [
        ("threshold=0.8", Decoding(Threshold(0.8))),
        ("factor=1.5", Decoding(Factor(1.5))),
        ("entropy=0.3", Decoding(EntropyBound(0.3))),
        ("credit=0.7", Decoding(Credit(0.7))),
        ("hierarchical=0.95", Decoding(Hierarchical(0.95))),
        ("steps=8", Decoding(FixedSteps(8))),
        ("threshold=0.7 edit=0.6", Decoding(Threshold(0.7), EditRule(0.6))),
        (
            "threshold=0.7 remask=0.2",
            Decoding(Threshold(0.7), EditRule(budget=0, remask_below=0.2)),
        ),
        ("threshold=0.8 reuse=exact", Decoding(Threshold(0.8))),
        ("threshold=0.8 reuse=prefix", Decoding(Threshold(0.8), reuse=Reuse.PREFIX)),
        (
            "reuse=dual:4 threshold=0.8",
            Decoding(Threshold(0.8), reuse=Reuse.DUAL, refresh_interval=4),
        ),
        ("guards entropy=0.1", Decoding(EntropyBound(0.1), guards=GuardRule())),
    ],
)
def test_settings(setting: str, decoding: Decoding) -> None:
    assert read_decoding(setting) == decoding


def test_every_policy_can_be_named() -> None:
    for name in POLICIES:
        assert read_decoding(f"{name}=1").policy == POLICIES[name](1)


@pytest.mark.parametrize(
    "setting",
    [
        "", "threshold", "threshold=x", "threshold=2", "threshold=nan", "thresold=0.9", "edit=0.5",
        "threshold=0.9 factor=1", "threshold=0.9 threshold=0.9", "threshold=0.9 guards=1",
        "threshold=0.9 edit=7", "steps=0", "0.9",
        "threshold=0.9 reuse", "threshold=0.9 reuse=", "threshold=0.9 reuse=all", "reuse=dual",
        "threshold=0.9 reuse=dual:", "threshold=0.9 reuse=dual:0", "threshold=0.9 reuse=exact:2",
        "threshold=0.9 reuse=dual reuse=dual", "threshold=0.9 reuse=prefix:x",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="setting 'decoding'"):
        read_decoding(setting)
