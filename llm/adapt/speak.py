"""Stage one: the base learns how the assistant answers, from its turns only."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from llm.adapt.data import Batch, Dialogue, batches, encode, endless, split
from llm.adapt.model import Backbone, compile_layers
from llm.adapt.train import Plan, train
from llm.chat_template import ChatTemplate
from llm.models.transformer import Weights
from llm.tokenizer import Tokenizer

RANK = 64
TOKENS_PER_BATCH = 3072
LEARNING_RATE = 2e-3


def speak_loss(model: Backbone, batch: Batch) -> Tensor:
    """Mean cross-entropy of the tokens that the assistant wrote."""
    (hidden,) = model(batch.ids)
    before = batch.spoken[:, 1:]
    logits = model.logits(hidden[:, :-1][before])
    return F.cross_entropy(logits, batch.ids[:, 1:][before])


def speak(
    weights: Weights,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    dialogues: list[Dialogue],
    plan: Plan,
) -> bool:
    """Fine-tune on the dialogues. Returns whether the plan was finished."""
    torch.manual_seed(0)
    model = Backbone(weights, RANK)
    compile_layers(model.layers)
    training, validation = split(dialogues)
    examples = [encode(d, tokenizer, template) for d in training]
    held_out = batches([encode(d, tokenizer, template) for d in validation], 4096, seed=0)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        counts = [int(batch.spoken[:, 1:].sum()) for batch in held_out]
        losses = [
            float(speak_loss(model, batch)) * n for batch, n in zip(held_out, counts, strict=True)
        ]
        return {"validation_loss": round(sum(losses) / sum(counts), 4)}

    return train(
        model,
        plan,
        lambda start: endless(examples, TOKENS_PER_BATCH, start),
        lambda batch: speak_loss(model, batch),
        validate,
    )
