"""Whether the 8-bit path says what the weights say: its best tokens and loss beside float32's.

Measured on held-out dialogues, on the tokens that the assistant wrote; neither training nor the
choice of how to round has seen them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from llm.adapt.data import Example
from llm.bench.report import Row, Table, Target
from llm.engine.canvas import Step
from llm.engine.runner import Runner
from llm.models.checkpoint import Checkpoint
from llm.models.linear import FloatLinear
from llm.models.transformer import KVCache, Transformer


def measure_agreement(
    runner: Runner, checkpoint: Checkpoint, examples: Sequence[Example]
) -> tuple[Table, list[Target]]:
    """Table `agreement`: share of equal best tokens, and the mean loss of both in nats."""
    reference = Transformer(checkpoint, FloatLinear)
    same, count = 0, 0
    losses = np.zeros(2)
    for example in examples:
        rows = [i - 1 for i, spoken in enumerate(example.spoken) if spoken]
        wanted = np.array([example.ids[row + 1] for row in rows])
        ours, theirs = _integer(runner, example, rows), _float(reference, example, rows)
        same += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        count += len(rows)
        losses += [_loss(ours, wanted), _loss(theirs, wanted)]
    ours_nats, theirs_nats = (float(total) / count for total in losses)
    row: Row = {
        "dialogues": len(examples),
        "tokens": count,
        "same_percent": 100 * same / count,
        "loss": ours_nats,
        "float32_loss": theirs_nats,
    }
    title = "8 bits beside float32 on held-out dialogues, what the assistant wrote"
    return Table("agreement", title, [row]), [
        Target("best tokens equal to float32's, percent", 100 * same / count, 93, at_most=False),
        Target("loss above float32's", ours_nats - theirs_nats, 0.03),
    ]


def _integer(runner: Runner, example: Example, rows: Sequence[int]) -> NDArray[np.float32]:
    step = Step(0, example.ids, tuple(range(1, len(example.ids) + 1)), tuple(rows))
    runner.open(0, len(example.ids))
    (logits,) = runner.forward([(0, step)])
    runner.close(0)
    return logits


@torch.inference_mode()
def _float(model: Transformer, example: Example, rows: Sequence[int]) -> NDArray[np.float32]:
    ids = torch.tensor(example.ids)
    cache = KVCache(model.config, len(ids))
    hidden = model.forward(ids, 0, torch.arange(len(ids)) + 1, cache)
    logits: NDArray[np.float32] = model.logits(hidden[list(rows)]).numpy()
    return logits


def _loss(logits: NDArray[np.float32], wanted: NDArray[np.int64]) -> float:
    best = logits.max(axis=1)
    masses = np.log(np.exp(logits - best[:, None]).sum(axis=1)) + best
    return float((masses - logits[np.arange(len(wanted)), wanted]).sum())
