"""Is the model read as it was trained? Its loss on a plain paragraph tells.

In: a loaded model. Out: a verdict, with a warning that names the likely cause where reading the
model in another way would make the paragraph much easier. A wrong shift, mask, template or rotary
layout raises no error by itself: the model only talks nonsense.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from llm.chat_template import ChatTemplate
from llm.models.folder import LoadedModel
from llm.models.spec import Attention, DiffusionSpec
from llm.models.tokenizer_json import FolderTokenizer
from llm.models.transformer import Transformer
from llm.types import Message

PARAGRAPH = Path(__file__).with_name("self_check.txt")
QUESTION = Message("user", "Describe an ordinary day in a few plain sentences.")

MASKED_SHARES = (0.15, 0.5)
"""Share of the tokens that are masked, in one pass each."""

MUCH_BETTER = 1.0
"""Nats by which another reading must beat the one taken to be the likelier one. SmolLM2-135M:
2.4 read rightly, 3.7 with the other rotary layout, 11.8 with the other shift."""

SUSPICIOUS = 5.0
"""Mean loss in nats above which a model cannot be speaking English; chance is about 11."""

SUSPICIOUS_END = 3.0
"""Loss in nats of ending an answer that is complete. SmolLM2-135M: 0.6 in its own chat template,
4.7 to 7.4 in others, and 5.4 in none."""


class Cause(Enum):
    """What may be read wrongly, as a warning."""

    SHIFT = "the logit shift is likely wrong: logits seem to predict the {} position"
    MASK_ID = "the mask id is likely wrong: {} works much better"
    ROTARY = "the rotary layout is likely wrong: rotating {} works much better"
    WEIGHTS = "the model does not know plain English; its weights or config are likely wrong"
    TEMPLATE = (
        "the chat template or the end-of-text tokens are likely not this model's: "
        "it does not end an answer that is complete"
    )


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another reading: what it changes, how to say so, and the mean loss in nats with it."""

    cause: Cause
    detail: str
    loss: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check found.

    loss: mean loss of the paragraph; end_loss: loss of ending the answer behind it, both in nats.
    cause and warning (one line): what is likely wrong, None where all is well.
    """

    loss: float
    end_loss: float
    cause: Cause | None = None
    warning: str | None = None


def judge(loss: float, end_loss: float, alternatives: Sequence[Alternative]) -> Verdict:
    """The verdict on a model with these losses, in nats. A loss may be NaN."""
    best = min(alternatives, key=lambda alternative: alternative.loss)
    if loss - best.loss > MUCH_BETTER:
        return Verdict(loss, end_loss, best.cause, best.cause.value.format(best.detail))
    if not loss < SUSPICIOUS:
        return Verdict(loss, end_loss, Cause.WEIGHTS, Cause.WEIGHTS.value)
    if not end_loss < SUSPICIOUS_END:
        return Verdict(loss, end_loss, Cause.TEMPLATE, Cause.TEMPLATE.value)
    return Verdict(loss, end_loss)


@torch.inference_mode()
def self_check(model: LoadedModel) -> Verdict:
    """Run the shipped paragraph through the model under its own objective and judge it.

    Causal models predict the next token of clean text; the others predict tokens that are masked,
    each block behind clean ones.
    """
    backbone, spec, tokenizer, template = model
    text = tokenizer.encode(PARAGRAPH.read_text("utf-8").strip())
    prompt = ChatTemplate(template).encode((QUESTION,), tokenizer)
    loss, shifted = _losses(backbone, spec, text)
    turned, turn = _other_rotary(backbone)
    alternatives = [
        Alternative(Cause.SHIFT, "same" if spec.logit_shift else "next", shifted),
        Alternative(Cause.ROTARY, turn, _losses(turned, spec, text)[0]),
    ]
    for name, mask_id in _other_masks(tokenizer, spec):
        other = dataclasses.replace(spec, mask_id=mask_id)
        detail = f"{mask_id}, {name},"
        alternatives.append(Alternative(Cause.MASK_ID, detail, _losses(backbone, other, text)[0]))
    return judge(loss, _end_loss(backbone, spec, [*prompt, *text]), alternatives)


def _other_rotary(backbone: Transformer) -> tuple[Transformer, str]:
    """The same weights in the other rotary layout, and what then rotates."""
    pairs = not backbone.config.rotary_pairs
    turned = copy.copy(backbone)
    turned.config = dataclasses.replace(backbone.config, rotary_pairs=pairs)
    return turned, "neighbours" if pairs else "halves"


def _other_masks(tokenizer: FolderTokenizer, spec: DiffusionSpec) -> list[tuple[str, int]]:
    """Tokens whose names say that they may be the mask. Clean causal text has none."""
    if spec.attention is Attention.CAUSAL_VERIFIED:
        return []
    taken = spec.eos_ids | {spec.mask_id}
    special = tokenizer.special_tokens.items()
    return [(n, i) for n, i in special if "mask" in n.lower() and i not in taken]


def _losses(
    backbone: Transformer, spec: DiffusionSpec, tokens: Sequence[int]
) -> tuple[float, float]:
    """Mean loss in nats of predicting the tokens, with the logit shift of `spec` and the other."""
    ids = torch.tensor(tokens)
    shifts = (spec.logit_shift, 1 - spec.logit_shift)
    losses: list[list[Tensor]] = [[], []]
    for scored, masked in _passes(spec, len(ids)):
        hidden = _hidden(backbone, spec, ids, masked)
        for shift, parts in zip(shifts, losses, strict=True):
            logits = backbone.logits(hidden[scored - shift]).float()
            parts.append(F.cross_entropy(logits, ids[scored], reduction="none"))
    own, other = (torch.cat(parts).mean().item() for parts in losses)
    return own, other


def _passes(spec: DiffusionSpec, length: int) -> list[tuple[Tensor, Tensor]]:
    """For each pass the positions whose prediction counts and which tokens are masked."""
    if spec.attention is Attention.CAUSAL_VERIFIED:
        return [(torch.arange(1, length), torch.zeros(length, dtype=torch.bool))]
    generator = torch.Generator().manual_seed(0)
    passes = []
    for share in MASKED_SHARES:
        masked = torch.rand(length, generator=generator) < share
        # With shifted logits nothing in a block predicts its first token.
        masked[:: spec.block_length if spec.attention is Attention.BLOCK_CAUSAL else length] = False
        passes.append((masked.nonzero()[:, 0], masked))
    return passes


def _end_loss(backbone: Transformer, spec: DiffusionSpec, tokens: Sequence[int]) -> float:
    """Loss in nats of ending the text behind the tokens, whatever token ends it."""
    ids = torch.tensor([*tokens, spec.mask_id])
    hidden = _hidden(backbone, spec, ids, torch.zeros(len(ids), dtype=torch.bool))
    logits = backbone.logits(hidden[[len(tokens) - spec.logit_shift]]).float().log_softmax(dim=1)
    return -logits[0, sorted(spec.eos_ids)].logsumexp(dim=0).item()


def _hidden(backbone: Transformer, spec: DiffusionSpec, ids: Tensor, masked: Tensor) -> Tensor:
    """Hidden states of every row; in blocks, a row sees no masks but those of its own block."""
    rows, cache = torch.arange(len(ids)), backbone.open_cache(len(ids))
    noisy = ids.masked_fill(masked, spec.mask_id)
    if spec.attention is Attention.CAUSAL_VERIFIED:
        return backbone.forward(noisy, 0, rows + 1, cache)
    if spec.attention is Attention.FULL:
        return backbone.forward(noisy, 0, torch.full_like(rows, len(ids)), cache)
    length = spec.block_length
    visible = ((rows // length + 1) * length).clamp_max(len(ids))
    backbone.forward(ids, 0, visible, cache)
    # Last block first: a block's masks overwrite its clean keys, which later blocks see.
    parts = [
        backbone.forward(
            noisy[start : start + length], start, visible[start : start + length], cache
        )
        for start in reversed(range(0, len(ids), length))
    ]
    return torch.cat(parts[::-1])
