"""Stage two: a shallow drafter learns to guess what the frozen speaking model will say next.

For each position the drafter reads what the frozen model made of it (its normed states at a few
depths) and the token behind it, and predicts the token after that; masks behind it, which see it,
all clean text before it and each other, predict the ones that follow. It is trained on the frozen
model's own predictions, as far as the text goes where that model would have taken it: an anchor's
later drafts count only while the text agrees with the model (DFlash and EAGLE-3 train on such
states too, with larger drafters).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from rich.progress import track
from torch import Tensor, nn

from llm.adapt.data import Batch, Example
from llm.adapt.model import COMPUTE, Backbone, Layer, LowRankLinear, compile_layers, rotary
from llm.adapt.train import Plan, train
from llm.models.spec import DrafterConfig
from llm.models.transformer import Weights

TOKENS_PER_BATCH = 3072
LEARNING_RATE = 1e-3
DISTANCE_DECAY = 0.8
"""Each further draft weighs so much less: it counts only where all before it were right."""

TEACHER_SHARPNESS = 2.0
"""The model's logits are multiplied by this: what verifies is its best token."""


class Drafter(nn.Module):
    """Layers of the frozen model's shape, started from its last ones, over its embedding."""

    embedding: Tensor
    head: Tensor
    final_norm: Tensor

    def __init__(self, weights: Weights, config: DrafterConfig) -> None:
        super().__init__()
        base = self.base = weights.config
        self.config = config
        hidden = base.hidden_size
        table = torch.as_tensor(
            weights.tensor("model.embed_tokens.weight", (base.vocab_size, hidden))
        ).to(COMPUTE)
        norm = torch.as_tensor(weights.tensor("model.norm.weight", (hidden,))).to(COMPUTE)
        self.register_buffer("embedding", table, persistent=False)
        self.register_buffer("head", table[list(config.token_ids)], persistent=False)
        self.register_buffer("final_norm", norm, persistent=False)
        depths = len(config.depths)
        self.features = LowRankLinear(
            torch.randn(hidden, depths * hidden) * hidden**-0.5 / depths, 0
        )
        self.next = LowRankLinear(torch.eye(hidden), 0)
        self.masks = nn.Parameter(torch.randn(config.num_drafts - 1, hidden) * 0.02)
        first = base.num_layers - config.num_layers
        self.layers = nn.ModuleList(Layer(weights, first + i, 0) for i in range(config.num_layers))

    def forward(self, states: Tensor, ids: Tensor, anchors: Tensor) -> Tensor:
        """Drafts at every anchor.

        states: [sequences, length, depths x hidden], of the frozen model. ids: [sequences,
        length]. anchors: int64 [sequences, n], positions that have a token behind them. Returns
        hidden states [sequences, n, num_drafts, hidden].
        """
        sequences, length = ids.shape
        num_masks = self.config.num_drafts - 1
        behind = F.pad(ids[:, 1:], (0, 1))
        clean = self.features(states) + self.next(self.embedding[behind])
        masks = self.masks.to(COMPUTE).expand(sequences, anchors.shape[1], -1, -1)
        x = torch.cat((clean, masks.flatten(1, 2)), dim=1)
        offsets = torch.arange(1, num_masks + 1)
        places = (anchors[:, :, None] + offsets).flatten(1)
        positions = torch.cat((torch.arange(length).expand(sequences, -1), places), dim=1)
        cos, sin = rotary(self.base, positions)
        bias = self._bias(length, anchors)
        for layer in self.layers:
            x = layer(x, cos[:, None], sin[:, None], bias)
        x = F.rms_norm(x, x.shape[-1:], self.final_norm, self.base.norm_epsilon)
        first = x.gather(1, anchors[..., None].expand(-1, -1, x.shape[-1]))
        rest = x[:, length:].view(sequences, anchors.shape[1], num_masks, -1)
        return torch.cat((first[:, :, None], rest), dim=2)

    def _bias(self, length: int, anchors: Tensor) -> Tensor:
        """[sequences, 1, 1, rows, rows]: clean rows are causal, a mask sees its anchor's past."""
        sequences, num_anchors = anchors.shape
        num_masks = self.config.num_drafts - 1
        until = torch.cat(
            (torch.arange(length).expand(sequences, -1), anchors.repeat_interleave(num_masks, 1)), 1
        )
        sees_clean = torch.arange(length) <= until[..., None]
        group = torch.cat(
            (torch.full((length,), -1), torch.arange(num_anchors).repeat_interleave(num_masks))
        )
        same = (group[:, None] == group[length:]).expand(sequences, -1, -1)
        visible = torch.cat((sees_clean, same), dim=2)
        return torch.where(visible, 0.0, -1e4).to(COMPUTE)[:, None, None]


@dataclass(frozen=True, slots=True)
class Observed:
    """A batch and what the frozen model made of it.

    states: [sequences, length, depths x hidden], normed. best: its best token behind each
    position.
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
    best = F.linear(states[-1], model.embedding).argmax(-1)
    return Observed(batch, torch.cat(states, dim=-1), best)


def draft_loss(drafter: Drafter, observed: Observed) -> tuple[Tensor, Tensor]:
    """The loss, and for each draft position how often it equals the model's own token.

    Anchors are all positions whose next token the assistant wrote.
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
    """Positions in front of what the assistant wrote, [sequences, n], and which are no padding."""
    wanted = F.pad(spoken[:, 1:], (0, 1))
    count = int(wanted.sum(1).max())
    order = torch.argsort((~wanted).to(torch.int8), dim=1, stable=True)[:, :count]
    valid = wanted.gather(1, order)
    return order, valid


class Observations:
    """Observed batches on disk: the frozen model runs once, and each epoch costs the drafter only.

    folder: gets one file for each batch, 10 MB for 3,000 tokens.
    """

    def __init__(self, folder: Path, num_batches: int) -> None:
        self._folder = folder
        self.num_batches = num_batches

    def fill(self, model: Backbone, batches: Sequence[Batch], depths: Sequence[int]) -> None:
        """Observe the batches that were not observed before, with a progress bar."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, batch in track(list(enumerate(batches)), "reading what the model makes of it"):
            path = self._path(number)
            if path.is_file():
                continue
            seen = observe(model, batch, depths)
            partial = path.with_suffix(".partial")
            torch.save((batch.ids, batch.spoken, seen.states, seen.best), partial)
            partial.replace(path)

    def read(self, number: int) -> Observed:
        """The batch with this number."""
        ids, spoken, states, best = torch.load(self._path(number), weights_only=True)
        return Observed(Batch(ids, spoken), states, best)

    def endless(self, start: int) -> Iterator[Observed]:
        """Epoch after epoch in random order, from batch number `start` on."""
        for number in itertools.count(start):
            epoch, index = divmod(number, self.num_batches)
            order = random.Random(epoch).sample(range(self.num_batches), self.num_batches)
            yield self.read(order[index])

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05}.pt"


def common_tokens(examples: Sequence[Example], most: int) -> tuple[int, ...]:
    """The tokens that occur most often, in order of their ids."""
    counts = Counter(itertools.chain.from_iterable(example.ids for example in examples))
    return tuple(sorted(token for token, _ in counts.most_common(most)))


def train_drafter(
    drafter: Drafter, observed: Observations, held_out: Observations, plan: Plan
) -> bool:
    """Train on what was observed. Returns whether the plan was finished."""

    compile_layers(drafter.layers)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        results = [draft_loss(drafter, held_out.read(i)) for i in range(held_out.num_batches)]
        useful = torch.stack([u for _, u in results]).mean(0)
        return {
            "validation_loss": round(float(torch.stack([x for x, _ in results]).mean()), 4),
            "tokens_per_forward": round(1 + float(useful.sum()), 3),
        } | {f"draft_{i}": round(float(x), 3) for i, x in enumerate(useful, start=1)}

    return train(drafter, plan, observed.endless, lambda o: draft_loss(drafter, o)[0], validate)
