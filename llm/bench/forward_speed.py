"""How long forwards take, by rows and by context, and how near that is to the machine's limits.

The stopwatch is handed in; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from llm.bench.machine_limits import Stopwatch, Work
from llm.bench.report import Row, Table, Target, spread
from llm.engine.canvas import Step
from llm.engine.engine import PREFILL_ROWS
from llm.engine.runner import Runner

BLOCK_ROWS = 8
"""Rows of a forward that the targets speak of: a block and what it verifies."""

BY_ROWS_CONTEXT = 256
ANY_TOKEN = 100
"""What the tokens are does not change how long a forward takes."""


class AllProducts(Protocol):
    """The model's matrix products, for BLOCK_ROWS rows."""

    weight_bytes: int
    num_products: int

    def run(self) -> None:
        """Compute every product once."""


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What to measure. repeats: forwards of each kind. prefills: prompt lengths."""

    repeats: int
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32)
    contexts: Sequence[int] = (128, 512, 1024, 2048, 4096, 7680)
    prefills: Sequence[int] = (32, 256, 1024)


def measure_forwards(runner: Runner, stopwatch: Stopwatch, plan: ForwardPlan) -> list[Table]:
    """Tables `forward_by_rows`, `forward_by_context` and `prefill`."""
    return [
        _by_rows(runner, stopwatch, plan),
        _by_context(runner, stopwatch, plan),
        _prefill(runner, stopwatch, plan),
    ]


def measure_limits(
    runner: Runner, products: AllProducts, read_gb_s: float, stopwatch: Stopwatch, repeats: int
) -> tuple[Table, list[Target]]:
    """Table `limits`: a forward beside its matrix products and beside reading its weights.

    read_gb_s: what memory gives. The three are timed in turn, so that a machine whose speed
    changes meanwhile changes all of them.
    """
    works: dict[str, Work] = {
        "forward_ms": partial(runner.forward, [(0, decode_step(BY_ROWS_CONTEXT, BLOCK_ROWS))]),
        "one_row_ms": partial(runner.forward, [(0, decode_step(BY_ROWS_CONTEXT, 1))]),
        "products_ms": products.run,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    with room(runner, BY_ROWS_CONTEXT + BLOCK_ROWS):
        prefill(runner, 0, BY_ROWS_CONTEXT)
        for _ in range(repeats):
            for name, work in works.items():
                times[name] += stopwatch(work, 1)
    medians = {name: float(spread(values)["median_ms"]) for name, values in times.items()}
    weight_mb = products.weight_bytes / 1e6
    row: Row = {
        **medians,
        "products": products.num_products,
        "weight_mb": weight_mb,
        "reading_weights_ms": weight_mb / read_gb_s,
        "share_of_bandwidth": weight_mb / read_gb_s / medians["forward_ms"],
    }
    forward_ms = medians["forward_ms"]
    title = f"a forward of {BLOCK_ROWS} rows, one of 1 row, the matrix products alone: in turn"
    return Table("limits", title, [row]), [
        Target("forward of 8 rows / its products alone", forward_ms / medians["products_ms"], 1.5),
        Target("forward of 1 row / of 8 rows", medians["one_row_ms"] / forward_ms, 0.6),
    ]


def decode_step(context: int, rows: int) -> Step:
    """A step of clean rows behind `context` cached tokens, each of which is predicted from."""
    visible = tuple(range(context + 1, context + rows + 1))
    return Step(context, (ANY_TOKEN,) * rows, visible, tuple(range(rows)))


def prefill(runner: Runner, start: int, end: int) -> None:
    """Compute the positions [start, end) of slot 0 as the engine computes a prompt."""
    for first in range(start, end, PREFILL_ROWS):
        rows = min(PREFILL_ROWS, end - first)
        visible = tuple(range(first + 1, first + rows + 1))
        wanted = (rows - 1,) if first + rows == end else ()
        runner.forward([(0, Step(first, (ANY_TOKEN,) * rows, visible, wanted))])


@contextmanager
def room(runner: Runner, num_positions: int) -> Iterator[None]:
    """Slot 0 holds so many positions meanwhile."""
    runner.open(0, num_positions)
    try:
        yield
    finally:
        runner.close(0)


def contexts_that_fit(contexts: Sequence[int], context_length: int) -> list[int]:
    """The contexts in order, those behind which no block fits cut to the longest possible."""
    return sorted({min(context, context_length - BLOCK_ROWS) for context in contexts})


def _by_rows(runner: Runner, stopwatch: Stopwatch, plan: ForwardPlan) -> Table:
    rows: list[Row] = []
    with room(runner, BY_ROWS_CONTEXT + max(plan.rows)):
        prefill(runner, 0, BY_ROWS_CONTEXT)
        for count in plan.rows:
            steps = [(0, decode_step(BY_ROWS_CONTEXT, count))]
            times = stopwatch(partial(runner.forward, steps), plan.repeats)
            rows.append({"rows": count, **spread(times)})
    title = f"one forward over {BY_ROWS_CONTEXT} cached tokens, every row predicting"
    return Table("forward_by_rows", title, rows)


def _by_context(runner: Runner, stopwatch: Stopwatch, plan: ForwardPlan) -> Table:
    rows: list[Row] = []
    filled = 0
    with room(runner, runner.context_length):
        for context in contexts_that_fit(plan.contexts, runner.context_length):
            prefill(runner, filled, context)
            filled = context
            steps = [(0, decode_step(context, BLOCK_ROWS))]
            times = stopwatch(partial(runner.forward, steps), plan.repeats)
            rows.append({"context_tokens": context, **spread(times)})
    return Table("forward_by_context", f"one forward of {BLOCK_ROWS} rows by context", rows)


def _prefill(runner: Runner, stopwatch: Stopwatch, plan: ForwardPlan) -> Table:
    rows: list[Row] = []
    for length in plan.prefills:
        with room(runner, length):
            times = stopwatch(partial(prefill, runner, 0, length), max(3, plan.repeats // 10))
        figures = spread(times)
        rate = length / float(figures["median_ms"]) * 1000
        rows.append({"prompt_tokens": length, **figures, "tokens_s": rate})
    return Table("prefill", f"prompt from nothing, {PREFILL_ROWS} rows a forward", rows)
