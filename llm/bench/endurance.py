"""Many short requests with aborts at random: what is asked, and whether anything leaked. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm.bench.engine_speed import STORY
from llm.bench.report import Row, Table, Target
from llm.types import Message, Request, SamplingParams

SETTLED_AFTER = 0.2
"""Share of the run in which caches fill and allocators find their size."""

MAX_GROWTH = 0.01


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, and after how many events its caller goes away; None = never."""

    request: Request
    abort_after: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine after a soak. reasons: how many requests ended so, by the reason's name."""

    reasons: dict[str, int]
    free_slots: int
    num_slots: int
    held: int
    cache_bytes: int
    cache_bound: int


def visits(count: int, seed: int = 0) -> Iterator[Visit]:
    """Short requests of all kinds; every third is aborted, some before anything came."""
    rng = random.Random(seed)
    for _ in range(count):
        words = " ".join(rng.choices(STORY.split(), k=rng.randint(1, 24)))
        request = Request(
            (Message("user", words),),
            max_new_tokens=rng.randint(1, 12),
            stop=rng.choice([(), (".",)]),
            sampling=SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=rng.getrandbits(32)),
            cache_salt=str(rng.randint(0, 9)),
        )
        yield Visit(request, rng.randint(0, 4) if rng.random() < 1 / 3 else None)


def soak_report(
    asked: int, memory: Sequence[int], seconds: float, ended: Ended
) -> tuple[list[Table], list[Target]]:
    """Figures and bars.

    memory: resident bytes at even distances through the run, at least two, the last at its end.
    """
    settled = memory[int(SETTLED_AFTER * (len(memory) - 1))]
    growth = max(memory[int(SETTLED_AFTER * (len(memory) - 1)) :]) / settled - 1
    row: Row = {
        "requests": asked,
        "requests_s": asked / seconds,
        **dict(sorted(ended.reasons.items())),
        "rss_20_percent_mb": settled / 1e6,
        "rss_end_mb": memory[-1] / 1e6,
        "prefix_cache_mb": ended.cache_bytes / 1e6,
    }
    return [Table("soak", "many short requests, some aborted", [row])], [
        Target("requests without exactly one end", asked - sum(ended.reasons.values()), 0),
        Target("requests that failed", ended.reasons.get("error", 0), 0),
        Target("requests still held", ended.held, 0),
        Target("slots not free", ended.num_slots - ended.free_slots, 0),
        Target(
            "prefix cache, share of its bound", ended.cache_bytes / max(1, ended.cache_bound), 1
        ),
        Target("growth of memory after 20 % of the run", growth, MAX_GROWTH),
    ]
