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
from llm.bench.held_out import row_logits, spoken_rows, summed_loss
from llm.bench.report import Row, Table, Target
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
        rows, wanted = spoken_rows(example)
        ours, theirs = row_logits(runner, example, rows), _float(reference, example, rows)
        same += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        count += len(rows)
        losses += [summed_loss(ours, wanted), summed_loss(theirs, wanted)]
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


@torch.inference_mode()
def _float(model: Transformer, example: Example, rows: Sequence[int]) -> NDArray[np.float32]:
    ids = torch.tensor(example.ids)
    cache = KVCache(model.config, len(ids))
    hidden = model.forward(ids, 0, torch.arange(len(ids)) + 1, cache)
    logits: NDArray[np.float32] = model.logits(hidden[list(rows)]).numpy()
    return logits
