"""What is trained: the backbone with low-rank adapters on every linear layer, and the drafter.

Computes in bfloat16, which the matrix units of current processors and GPUs multiply many times
faster than float32; adapters and their optimiser stay in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor, nn

from llm.models.rotary import pair_speeds
from llm.models.spec import DrafterConfig, TransformerConfig
from llm.models.transformer import Weights

COMPUTE = torch.bfloat16


class LowRankLinear(nn.Module):
    """`y = x (W + B A)ᵀ` with W frozen (LoRA, arXiv 2106.09685); B starts at zero.

    weight: [out, in]. rank: rows of A; 0 = no adapter, and W itself is trained.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        if rank:
            self.register_buffer("weight", weight.to(COMPUTE), persistent=False)
        else:
            self.weight = nn.Parameter(weight)
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1]) * weight.shape[1] ** -0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, x: Tensor) -> Tensor:
        """x: bfloat16 [..., in]. Returns [..., out]."""
        y = F.linear(x, self.weight.to(COMPUTE))
        if self.a.shape[0]:
            y = y + F.linear(F.linear(x, self.a.to(COMPUTE)), self.b.to(COMPUTE))
        return y


class Layer(nn.Module):
    """One layer of a Llama-shaped model; `load` gives its weights by their names."""

    norms: Tensor

    def __init__(self, weights: Weights, index: int, rank: int) -> None:
        super().__init__()
        config = self.config = weights.config
        hidden, heads = config.hidden_size, config.num_heads * config.head_size
        inner = config.intermediate_size

        def load(name: str, *shape: int) -> Tensor:
            return torch.as_tensor(weights.tensor(f"model.layers.{index}.{name}.weight", shape))

        attention = [load("self_attn.q_proj", heads, hidden)]
        attention += [load(f"self_attn.{n}_proj", config.kv_size, hidden) for n in "kv"]
        both = [load(f"mlp.{n}_proj", inner, hidden) for n in ("gate", "up")]
        self.qkv = LowRankLinear(torch.cat(attention), rank)
        self.output = LowRankLinear(load("self_attn.o_proj", hidden, heads), rank)
        self.gate_up = LowRankLinear(torch.cat(both), rank)
        self.down = LowRankLinear(load("mlp.down_proj", hidden, inner), rank)
        norms = [load(name, hidden) for name in ("input_layernorm", "post_attention_layernorm")]
        self.register_buffer("norms", torch.stack(norms).to(COMPUTE), persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        """x: [sequences, length, hidden]; bias: added to the scores, [length, length] or so."""
        config = self.config
        sequences, length, _ = x.shape
        groups = config.num_heads // config.num_kv_heads
        heads = self.qkv(self._norm(x, 0)).view(sequences, length, -1, config.head_size)
        widths = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        query, key, value = heads.transpose(1, 2).split(widths, dim=1)
        # Spelled out, since the fused attention of the CPU takes three times as long backwards.
        query = _rotate(query, cos, sin).reshape(
            sequences, config.num_kv_heads, -1, config.head_size
        )
        scores = query @ _rotate(key, cos, sin).transpose(-1, -2) * config.head_size**-0.5
        scores = scores.view(sequences, config.num_kv_heads, groups, length, length) + bias
        attended = scores.softmax(-1).view(sequences, config.num_kv_heads, -1, length) @ value
        attended = attended.view(sequences, config.num_heads, length, -1).transpose(1, 2)
        x = x + self.output(attended.reshape(sequences, length, -1))
        gate, up = self.gate_up(self._norm(x, 1)).chunk(2, dim=-1)
        fed: Tensor = self.down(F.silu(gate) * up)
        return x + fed

    def _norm(self, x: Tensor, which: int) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.norms[which], self.config.norm_epsilon)


class Backbone(nn.Module):
    """All layers over the embedding. rank: of the adapters."""

    embedding: Tensor
    final_norm: Tensor

    def __init__(self, weights: Weights, rank: int) -> None:
        super().__init__()
        config = self.config = weights.config
        table = torch.as_tensor(
            weights.tensor("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        )
        self.register_buffer("embedding", table.to(COMPUTE), persistent=False)
        norm = torch.as_tensor(weights.tensor("model.norm.weight", (config.hidden_size,)))
        self.register_buffer("final_norm", norm.to(COMPUTE), persistent=False)
        self.layers = nn.ModuleList(Layer(weights, i, rank) for i in range(config.num_layers))

    def forward(self, ids: Tensor, keep: tuple[int, ...] = ()) -> list[Tensor]:
        """ids: int64 [sequences, length], causal. Returns hidden states behind the layers `keep`
        (0 = embedding) and behind the last, each [sequences, length, hidden].
        """
        length = ids.shape[1]
        cos, sin = rotary(self.config, torch.arange(length))
        bias = torch.full((length, length), -1e4).triu(1).to(COMPUTE)
        hidden = self.embedding[ids]
        kept = [hidden] if 0 in keep else []
        for index, layer in enumerate(self.layers, start=1):
            hidden = layer(hidden, cos, sin, bias)
            if index in keep:
                kept.append(hidden)
        return [*kept, hidden]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [n, hidden] behind the last layer. Returns float32 [n, vocab]."""
        epsilon = self.config.norm_epsilon
        normed = F.rms_norm(hidden, self.final_norm.shape, self.final_norm, epsilon)
        return F.linear(normed, self.embedding).float()


class Drafter(nn.Module):
    """A few layers that guess what the frozen model will say next.

    For each position it reads what that model made of it (its normed states at a few depths) and
    the token behind it, and predicts the token after that; masks behind it, which see it, all
    clean text before it and each other, predict the ones that follow. Its layers start as the
    model's last ones, over its embedding.
    """

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


def compile_layers(layers: nn.ModuleList) -> None:
    """Make the layers a third faster; one graph for all lengths, in half a minute."""
    for layer in layers:
        layer.compile(dynamic=True)


def rotary(config: TransformerConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, head_size / 2] of the rotary embedding."""
    speeds = torch.from_numpy(pair_speeds(config.head_size, config.rope_theta)).float()
    angles = positions[..., None] * speeds
    return angles.cos().to(COMPUTE), angles.sin().to(COMPUTE)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
