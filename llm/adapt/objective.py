"""What training makes small: for speaking, and for drafting what the speaking model would say.

The drafter learns from the frozen model's own predictions, as far as the text goes where that
model would have taken it: an anchor's later drafts count only while the text agrees with the
model (DFlash and EAGLE-3 train on such states too, with larger drafters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from llm.adapt.data import Batch
from llm.adapt.model import Backbone, Drafter

DISTANCE_DECAY = 0.8
"""Each further draft weighs so much less: it counts only where all before it were right."""

MAX_ANCHORS = 24

TEACHER_SHARPNESS = 2.0
"""The model's logits are multiplied by this: what verifies is its best token."""


def speak_loss(model: Backbone, batch: Batch) -> Tensor:
    """Mean cross-entropy of the tokens that the assistant wrote."""
    (hidden,) = model(batch.ids)
    before = batch.spoken[:, 1:]
    logits = model.logits(hidden[:, :-1][before])
    return F.cross_entropy(logits, batch.ids[:, 1:][before])


@dataclass(frozen=True, slots=True)
class Observed:
    """A batch and what the frozen model made of it.

    states: [sequences, length, depths x hidden], normed. best: its best token behind each
    position where the assistant speaks.
    """

    batch: Batch
    states: Tensor
    best: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens, padding included."""
        return self.batch.num_tokens


@torch.no_grad()
def observe(model: Backbone, batch: Batch, depths: Sequence[int]) -> Observed:
    """Run the frozen model over a batch."""
    layers, epsilon = list(model.layers), model.config.norm_epsilon
    states = []
    for depth, hidden in zip(depths, model(batch.ids, tuple(depths)), strict=False):
        last = depth == model.config.num_layers
        gain = model.final_norm if last else layers[depth].get_buffer("norms")[0]
        states.append(F.rms_norm(hidden, gain.shape, gain, epsilon))
    # Elsewhere nobody asks, and a vocabulary for each row takes as long as the layers.
    best = torch.zeros_like(batch.ids)
    best[batch.spoken] = F.linear(states[-1][batch.spoken], model.embedding).argmax(-1)
    return Observed(batch, torch.cat(states, dim=-1), best)


def draft_loss(drafter: Drafter, observed: Observed) -> tuple[Tensor, Tensor]:
    """The loss, and for each draft position how often it equals the model's own token.

    Anchors are positions whose next token the assistant wrote.
    """
    batch, num_drafts = observed.batch, drafter.config.num_drafts
    anchors, valid = _anchors(batch.spoken)
    hidden = drafter(observed.states, batch.ids, anchors)
    places = (anchors[..., None] + torch.arange(1, num_drafts + 1)).clamp(
        max=batch.ids.shape[1] - 1
    )
    rows = torch.arange(len(anchors))[:, None, None]
    # Draft j of anchor t guesses what the model says behind position t + j.
    wanted = observed.best[rows, places]
    counts = valid[..., None] & batch.spoken[rows, places]
    follows = (wanted == batch.ids[rows, (places + 1).clamp(max=batch.ids.shape[1] - 1)]) & counts
    counts = counts & F.pad(follows, (1, 0), value=True)[..., :-1].cumprod(-1).bool()
    states = observed.states[..., -drafter.base.hidden_size :][rows, places][counts]
    teacher = (F.linear(states, drafter.head).float() * TEACHER_SHARPNESS).softmax(-1)
    logits = F.linear(hidden[counts], drafter.head).float()
    weight = (DISTANCE_DECAY ** torch.arange(num_drafts)).expand(counts.shape)[counts]
    losses = -(teacher * logits.log_softmax(-1)).sum(-1)
    tokens = torch.tensor(drafter.config.token_ids)[logits.argmax(-1)]
    right = torch.zeros(counts.shape, dtype=torch.bool)
    right[counts] = tokens == wanted[counts]
    # A draft is of use only where all before it were right.
    useful = right.cumprod(-1).sum((0, 1)) / counts[..., 0].sum()
    return (losses * weight).sum() / weight.sum(), useful


def _anchors(spoken: Tensor) -> tuple[Tensor, Tensor]:
    """Positions in front of what the assistant wrote, [sequences, n], and which are no padding.

    Some at random where there are more than MAX_ANCHORS, so that long texts do not make the rows
    of the short ones beside them mostly padding.
    """
    wanted = F.pad(spoken[:, 1:], (0, 1))
    count = min(MAX_ANCHORS, int(wanted.sum(1).max()))
    order = torch.where(wanted, torch.rand(wanted.shape), 2.0).argsort(dim=1)[:, :count]
    valid = wanted.gather(1, order)
    return order, valid
