"""The backbone as torch trains it: frozen weights, low-rank adapters on every linear layer.

Computes in bfloat16, which the matrix units of current processors and GPUs multiply many times
faster than float32; adapters and their optimiser stay in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor, nn

from llm.models.spec import TransformerConfig
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


def compile_layers(layers: nn.ModuleList) -> None:
    """Make the layers a third faster; one graph for all lengths, in half a minute."""
    for layer in layers:
        layer.compile(dynamic=True)


def rotary(config: TransformerConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, head_size / 2] of the rotary embedding."""
    steps = torch.arange(0, config.head_size, 2) / config.head_size
    angles = positions[..., None] * config.rope_theta**-steps
    return angles.cos().to(COMPUTE), angles.sin().to(COMPUTE)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
