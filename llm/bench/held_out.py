"""What a model makes of dialogues that it has not seen: the rows where the assistant speaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm.adapt.data import Example
from llm.engine.canvas import Step
from llm.engine.runner import Runner


def spoken_rows(example: Example) -> tuple[list[int], NDArray[np.int64]]:
    """The rows behind which the assistant wrote a token, and those tokens."""
    rows = [i - 1 for i, spoken in enumerate(example.spoken) if spoken]
    return rows, np.array([example.ids[row + 1] for row in rows])


def row_logits(runner: Runner, example: Example, rows: Sequence[int]) -> NDArray[np.float32]:
    """The logits of some rows of the text, [rows, vocab], computed in slot 0."""
    step = Step(0, example.ids, tuple(range(1, len(example.ids) + 1)), tuple(rows))
    runner.open(0, len(example.ids))
    (logits,) = runner.forward([(0, step)])
    runner.close(0)
    return logits


def summed_loss(logits: NDArray[np.float32], wanted: NDArray[np.int64]) -> float:
    """Negative log-likelihood of the wanted token of each row, in nats, summed."""
    best = logits.max(axis=1)
    masses = np.log(np.exp(logits - best[:, None]).sum(axis=1)) + best
    return float((masses - logits[np.arange(len(wanted)), wanted]).sum())
