"""Mixture of experts: a router picks a few small feed-forward networks for each row.

In: normed hidden rows. Out: the weighted sum of what the picked experts make of them. The shared
expert, which every row passes, is part of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from llm.models.linear import Linear
from llm.models.spec import MoeConfig


@dataclass(frozen=True, slots=True)
class Expert:
    """One feed-forward network (SwiGLU); gate and up are one matrix."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, hidden]. Returns [rows, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=1)
        return self.down(F.silu(gate) * up)


class MixtureOfExperts:
    """The routed experts of one layer.

    router: float32 [experts, hidden]. selection_bias: float32 [experts] or None.
    """

    def __init__(
        self,
        config: MoeConfig,
        router: Tensor,
        selection_bias: Tensor | None,
        experts: Sequence[Expert],
    ) -> None:
        self._config = config
        self._router = router
        self._selection_bias = selection_bias
        self._experts = experts

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, hidden]. Returns [rows, hidden]."""
        # Scores of neighbouring experts differ by less than bfloat16 can tell.
        chosen, weights = route(x.float() @ self._router.t(), self._selection_bias, self._config)
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():
            rows, places = torch.where(chosen == expert)
            weight = weights[rows, places, None].to(x.dtype)
            out.index_add_(0, rows, self._experts[expert](x[rows]) * weight)
        return out


def route(
    logits: Tensor, selection_bias: Tensor | None, config: MoeConfig
) -> tuple[Tensor, Tensor]:
    """Which experts each row goes to, and with what weight.

    logits: float32 [rows, experts]. Returns int64 and float32 [rows, experts_per_token]. The
    bias balances the load: it moves the choice, not the weight of what was chosen. With groups,
    a group counts as much as its best two experts, and only the best groups' experts are chosen
    from (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """
    scores = logits.sigmoid() if config.score == "sigmoid" else logits.softmax(dim=1)
    biased = scores if selection_bias is None else scores + selection_bias
    if config.num_groups > 1:
        groups = biased.view(len(biased), config.num_groups, -1)
        worth = groups.topk(min(2, groups.shape[2]), dim=2).values.sum(dim=2)
        best = worth.topk(config.groups_per_token, dim=1).indices
        closed = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
        biased = groups.masked_fill(closed[:, :, None], float("-inf")).view_as(biased)
    chosen = biased.topk(config.experts_per_token, dim=1).indices
    weights = scores.gather(1, chosen)
    if config.renormalise and config.experts_per_token > 1:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return chosen, weights * config.scale


def load_experts(
    load: Callable[..., Tensor],
    config: MoeConfig,
    hidden_size: int,
    linear: Callable[[Tensor], Linear],
) -> MixtureOfExperts:
    """Read one layer's router and experts.

    load: gives the layer's tensor of a name and shape. linear: what the experts' matrices become.
    """

    def expert(index: int) -> Expert:
        def weight(name: str, *shape: int) -> Tensor:
            return load(f"mlp.experts.{index}.{name}_proj.weight", *shape)

        gate_up = [weight(name, config.expert_size, hidden_size) for name in ("gate", "up")]
        down = weight("down", hidden_size, config.expert_size)
        return Expert(linear(torch.cat(gate_up)), linear(down))

    bias = load("mlp.gate.expert_bias", config.num_experts) if config.selection_bias else None
    return MixtureOfExperts(
        config,
        router=load("mlp.gate.weight", config.num_experts, hidden_size).float(),
        selection_bias=None if bias is None else bias.float(),
        experts=[expert(index) for index in range(config.num_experts)],
    )
