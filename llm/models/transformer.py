"""The dense backbone: Llama-shaped, int8 linear layers, rows independent of each other.

In: token ids behind what the cache holds, and for each how far it sees. Out: hidden states, and
logits for the rows that ask. Knows nothing of masks, drafts or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention import KEYS_PER_PAGE, block_attention, visibility_bias
from llm.models.checkpoint import Checkpoint
from llm.models.linear import Int8Linear, Linear
from llm.models.spec import TransformerConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; q, k and v are one matrix, and so are gate and up."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class KVCache:
    """Keys and values of one sequence, [layers, 2, num_kv_heads, capacity, head_size].

    capacity is rounded up to whole pages. Zeros at first: attention multiplies what it does not
    see by zero, which must not meet a NaN.
    """

    def __init__(self, config: TransformerConfig, capacity: int) -> None:
        pages = -(-capacity // KEYS_PER_PAGE)
        shape = (config.num_layers, 2, config.num_kv_heads, pages * KEYS_PER_PAGE, config.head_size)
        self.values = torch.zeros(shape)

    @property
    def capacity(self) -> int:
        """How many positions fit."""
        return int(self.values.shape[3])


class Transformer:
    """A Llama-shaped model whose embedding is also its head.

    linear: what its matrices become.
    """

    def __init__(
        self, checkpoint: Checkpoint, linear: Callable[[Tensor], Linear] = Int8Linear
    ) -> None:
        config = self.config = checkpoint.config
        self.embedding = linear(
            _load(checkpoint, "model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        )
        self.layers = [_load_layer(checkpoint, i, linear) for i in range(config.num_layers)]
        self.final_norm = _load(checkpoint, "model.norm.weight", (config.hidden_size,))
        self._cos, self._sin = _rotary_table(config)

    def forward(self, tokens: Tensor, start: int, visible: Tensor, cache: KVCache) -> Tensor:
        """Run new tokens through all layers and write their keys and values to the cache.

        tokens: int64 [rows], which stand at positions start, start + 1, …; visible: int64
        [rows], how many positions each row sees, itself included. Returns hidden states
        [rows, hidden]; `logits` turns them into predictions.
        """
        end = start + len(tokens)
        assert end <= cache.capacity, "the cache is too small for these rows"
        hidden = self.embedding.rows(tokens)
        cos, sin = self._cos[start:end], self._sin[start:end]
        bias = visibility_bias(visible, self.config.num_heads // self.config.num_kv_heads)
        for index, layer in enumerate(self.layers):
            normed = self._norm(hidden, layer.attention_norm)
            query, key, value = self._project(layer, normed, cos, sin)
            keys, values = cache.values[index]
            keys[:, start:end] = key.transpose(0, 1)
            values[:, start:end] = value.transpose(0, 1)
            attended = block_attention(query, keys, values, bias)
            hidden = hidden + layer.output(attended.reshape(len(tokens), -1))
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden] from `forward`. Returns [rows, vocab]."""
        return self.embedding(self._norm(hidden, self.final_norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), weight, self.config.norm_epsilon)

    def _project(
        self, layer: Layer, normed: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        projected = layer.qkv(normed)
        heads = projected.view(len(normed), -1, config.head_size)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = _rotate(heads[:, :num_rotated], cos, sin)
        return (
            rotated[:, : config.num_heads],
            rotated[:, config.num_heads :],
            heads[:, num_rotated:],
        )


def _rotary_table(config: TransformerConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, 1, head_size / 2] of the rotary embedding (RoFormer, 3.2)."""
    steps = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    angles = torch.outer(
        torch.arange(config.context_length, dtype=torch.float64), config.rope_theta**-steps
    )
    return angles.cos().float()[:, None], angles.sin().float()[:, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [rows, heads, head_size]; rotates its two halves against each other."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _load(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(checkpoint.tensor(name, shape))


def _load_layer(checkpoint: Checkpoint, index: int, linear: Callable[[Tensor], Linear]) -> Layer:
    config = checkpoint.config
    prefix = f"model.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_size

    def weight(name: str, *shape: int) -> Tensor:
        return _load(checkpoint, f"{prefix}{name}.weight", shape)

    return Layer(
        attention_norm=weight("input_layernorm", hidden),
        qkv=linear(
            torch.cat(
                (
                    weight("self_attn.q_proj", heads, hidden),
                    weight("self_attn.k_proj", config.kv_size, hidden),
                    weight("self_attn.v_proj", config.kv_size, hidden),
                )
            )
        ),
        output=linear(weight("self_attn.o_proj", hidden, heads)),
        mlp_norm=weight("post_attention_layernorm", hidden),
        gate_up=linear(
            torch.cat(
                (weight("mlp.gate_proj", inner, hidden), weight("mlp.up_proj", inner, hidden))
            )
        ),
        down=linear(weight("mlp.down_proj", hidden, inner)),
    )
