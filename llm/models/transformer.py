"""The backbone: Llama-shaped; with int8 linear layers its rows are independent of each other.

In: token ids behind what the cache holds, and for each how far it sees. Out: hidden states, and
logits for the rows that ask. Knows nothing of masks, drafts or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from numpy.typing import NDArray
from torch import Tensor

from kernels.attention import KEYS_PER_PAGE, block_attention, visibility_bias
from llm.models.linear import Int8Linear, Linear
from llm.models.moe import MixtureOfExperts, load_experts
from llm.models.rotary import pair_speeds, query_scales
from llm.models.spec import TransformerConfig


class Weights(Protocol):
    """Where a backbone's weights come from: a checkpoint of any format."""

    @property
    def config(self) -> TransformerConfig:
        """Shape of the backbone."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | Tensor:
        """The weight with the Hugging Face name `name`, rows first.

        Raises CheckpointError with the name and both shapes where it does not fit `shape`.
        """


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; q, k and v are one matrix, and so are gate and up.

    In a layer with experts gate_up and down are the shared expert, which sees every row.
    """

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    qkv_bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    experts: MixtureOfExperts | None = None


class KVCache:
    """Keys and values of one sequence, [layers, 2, num_kv_heads, capacity, head_size].

    capacity is rounded up to whole pages. Zeros at first: attention multiplies what it does not
    see by zero, which must not meet a NaN.
    """

    def __init__(
        self, config: TransformerConfig, capacity: int, dtype: torch.dtype = torch.float32
    ) -> None:
        pages = -(-capacity // KEYS_PER_PAGE)
        shape = (config.num_layers, 2, config.num_kv_heads, pages * KEYS_PER_PAGE, config.head_size)
        self.values = torch.zeros(shape, dtype=dtype)

    @property
    def capacity(self) -> int:
        """How many positions fit."""
        return int(self.values.shape[3])


class Transformer:
    """A Llama-shaped model; `config` says what it has besides.

    linear: what its matrices become. It computes in the dtype of its weights, except that
    positions rotate and routers choose in float32.
    """

    def __init__(self, weights: Weights, linear: Callable[[Tensor], Linear] = Int8Linear) -> None:
        config = self.config = weights.config
        table = (config.vocab_size, config.hidden_size)
        self.embedding = linear(_load(weights, "model.embed_tokens.weight", table))
        self.head = (
            self.embedding if config.tied_head else linear(_load(weights, "lm_head.weight", table))
        )
        self.layers = [_load_layer(weights, i, linear) for i in range(config.num_layers)]
        self.final_norm = _load(weights, "model.norm.weight", (config.hidden_size,))
        self._cos, self._sin = _rotary_table(config)
        self._query_scale = _query_scale(config)

    def open_cache(self, capacity: int) -> KVCache:
        """An empty cache for one sequence of at most `capacity` positions."""
        return KVCache(self.config, capacity, self.final_norm.dtype)

    def forward(self, tokens: Tensor, start: int, visible: Tensor, cache: KVCache) -> Tensor:
        """Run new tokens through all layers and write their keys and values to the cache.

        tokens: int64 [rows], which stand at positions start, start + 1, …; visible: int64
        [rows], how many positions each row sees, itself included. Returns hidden states
        [rows, hidden]; `logits` turns them into predictions.
        """
        end = start + len(tokens)
        assert end <= cache.capacity, "the cache is too small for these rows"
        hidden = self.embedding.rows(tokens)
        at = slice(start, end)
        bias = visibility_bias(visible, self.config.num_heads // self.config.num_kv_heads)
        bias = bias.to(hidden.dtype)
        for index, layer in enumerate(self.layers):
            normed = self._norm(hidden, layer.attention_norm)
            query, key, value = self._project(layer, normed, at)
            keys, values = cache.values[index, 0], cache.values[index, 1]
            keys[:, at] = key.transpose(0, 1)
            values[:, at] = value.transpose(0, 1)
            attended = block_attention(query, keys, values, bias)
            hidden = hidden + layer.output(attended.reshape(len(tokens), -1))
            normed = self._norm(hidden, layer.mlp_norm)
            gate, up = layer.gate_up(normed).chunk(2, dim=1)
            fed = layer.down(F.silu(gate) * up)
            if layer.experts is not None:
                fed = fed + layer.experts(normed)
            hidden = hidden + fed
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden] from `forward`. Returns [rows, vocab]."""
        return self.head(self._norm(hidden, self.final_norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_epsilon)

    def _project(self, layer: Layer, normed: Tensor, at: slice) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        projected = layer.qkv(normed)
        if layer.qkv_bias is not None:
            projected = projected + layer.qkv_bias
        heads = projected.view(len(normed), -1, config.head_size)
        widths = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        query, key, value = torch.split(heads, widths, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        rotate = _rotate_pairs if config.rotary_pairs else _rotate
        cos, sin = self._cos[at], self._sin[at]
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if self._query_scale is not None:
            query = query * self._query_scale[at].to(query.dtype)
        return query, key, value


def _rotary_table(config: TransformerConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, 1, rotary_size / 2] of the rotary embedding (RoFormer, 3.2)."""
    scaling = config.rotary_scaling
    size = config.rotary_size or config.head_size
    speeds = torch.from_numpy(pair_speeds(size, config.rope_theta, scaling))
    angles = torch.outer(torch.arange(config.context_length, dtype=torch.float64), speeds)
    amplitude = scaling.amplitude if scaling else 1.0
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return cos.float()[:, None], sin.float()[:, None]


def _query_scale(config: TransformerConfig) -> Tensor | None:
    """What multiplies queries, [positions, 1, 1]; None = nothing does."""
    scaling = config.rotary_scaling
    if scaling is None or not scaling.query_growth:
        return None
    scales = query_scales(scaling, config.context_length)
    return torch.from_numpy(scales).float()[:, None, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [rows, heads, head_size]; rotates the halves of what rotates against each other."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, dim=-1).to(x.dtype)


def _rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `_rotate`, but neighbours rotate against each other, as in RoFormer's equations."""
    size = 2 * cos.shape[-1]
    halves = torch.cat((x[..., 0:size:2], x[..., 1:size:2]), dim=-1)
    turned = torch.stack(_rotate(halves, cos, sin).chunk(2, dim=-1), dim=-1).flatten(-2)
    return torch.cat((turned, x[..., size:]), dim=-1)


def _load(weights: Weights, name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.as_tensor(weights.tensor(name, shape))


def _load_layer(weights: Weights, index: int, linear: Callable[[Tensor], Linear]) -> Layer:
    config = weights.config
    hidden, heads = config.hidden_size, config.num_heads * config.head_size
    projections = {"q": heads, "k": config.kv_size, "v": config.kv_size}
    moe = config.moe if config.moe and index >= config.moe.first_layer else None
    mlp, inner = (
        ("mlp.shared_expert", moe.shared_size) if moe else ("mlp", config.intermediate_size)
    )

    def load(name: str, *shape: int) -> Tensor:
        if 0 in shape:  # no shared expert: one of width 0 adds nothing
            return torch.zeros(shape, dtype=attention_norm.dtype)
        return _load(weights, f"model.layers.{index}.{name}", shape)

    def qkv(kind: str, *columns: int) -> Tensor:
        return torch.cat(
            [load(f"self_attn.{n}_proj.{kind}", rows, *columns) for n, rows in projections.items()]
        )

    def gate_up(name: str, inner: int) -> Tensor:
        return torch.cat([load(f"{name}.{n}_proj.weight", inner, hidden) for n in ("gate", "up")])

    attention_norm = load("input_layernorm.weight", hidden)
    return Layer(
        attention_norm=attention_norm,
        qkv=linear(qkv("weight", hidden)),
        output=linear(load("self_attn.o_proj.weight", hidden, heads)),
        mlp_norm=load("post_attention_layernorm.weight", hidden),
        gate_up=linear(gate_up(mlp, inner)),
        down=linear(load(f"{mlp}.down_proj.weight", hidden, inner)),
        qkv_bias=qkv("bias") if config.qkv_bias else None,
        query_norm=load("self_attn.q_norm.weight", config.head_size) if config.qk_norm else None,
        key_norm=load("self_attn.k_norm.weight", config.head_size) if config.qk_norm else None,
        experts=load_experts(load, moe, hidden, linear) if moe else None,
    )
