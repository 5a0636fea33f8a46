"""Moves the outliers of activations into the weights, so that 8 bits lose less.

A few input channels of each linear layer carry values many times larger than the rest, and the
scale of a row has to fit them. Dividing a channel by a factor and multiplying the weights behind
it by the same changes nothing in exact arithmetic, costs nothing at run time, and evens both out
(SmoothQuant, arXiv 2211.10438, section 4). On 16 dialogues 89.0 % of the best tokens equal those
of float without it; with strength 0.3 to 0.8 in steps: 88.5, 91.6, 92.7, 93.7, 92.8 and 87.1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm.models.checkpoint import Checkpoint, TokenizerData
from llm.models.linear import FloatLinear
from llm.models.spec import TransformerConfig
from llm.models.transformer import KVCache, Transformer

STRENGTH = 0.6

Factors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerFactors:
    """What the inputs of one layer's four matrices are divided by.

    attention, mlp: [hidden]. output: [kv_size], shared by the query heads of a group.
    down: [intermediate].
    """

    attention: Factors
    output: Factors
    mlp: Factors
    down: Factors


class SmoothedCheckpoint:
    """A checkpoint with the factors folded into its weights; exact but for float rounding."""

    def __init__(self, checkpoint: Checkpoint, factors: Sequence[LayerFactors]) -> None:
        self._checkpoint = checkpoint
        self._factors = factors
        self.drafter = checkpoint.drafter

    @property
    def config(self) -> TransformerConfig:
        """Shape of the backbone."""
        return self._checkpoint.config

    @property
    def tokenizer(self) -> TokenizerData:
        """Vocabulary and chat template."""
        return self._checkpoint.tokenizer

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The folded weight with the Hugging Face name `name`."""
        weight = self._checkpoint.tensor(name, shape)
        if name == "drafter.features.weight":
            return weight * self._feature_factors()
        if not name.startswith("model.layers."):
            return weight
        _, _, layer, rest = name.split(".", 3)
        factors = self._factors[int(layer)]
        match rest.removesuffix(".weight"):
            case "input_layernorm":
                weight /= factors.attention
            case "post_attention_layernorm":
                weight /= factors.mlp
            case "self_attn.q_proj" | "self_attn.k_proj":
                weight *= factors.attention
            case "self_attn.v_proj":
                weight *= factors.attention
                weight /= factors.output[:, None]
            case "self_attn.o_proj":
                weight *= _over_group(factors.output, self.config)
            case "mlp.gate_proj":
                weight *= factors.mlp
            case "mlp.up_proj":
                weight *= factors.mlp
                weight /= factors.down[:, None]
            case "mlp.down_proj":
                weight *= factors.down
        return weight

    def _feature_factors(self) -> Factors:
        """Of the normed states that a drafter reads; the last norm's are not divided."""
        config = self._checkpoint.config
        assert self.drafter is not None, "only a drafter reads features"
        ones = np.ones(config.hidden_size, np.float32)
        layers = [*(f.attention for f in self._factors), ones]
        return np.concatenate([layers[depth] for depth in self.drafter.depths])


@torch.inference_mode()
def find_factors(checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> list[LayerFactors]:
    """Run the texts (token ids) in float32 and balance what the layers see with their weights."""
    model = Transformer(checkpoint, _Recording)
    for ids in texts:
        cache = KVCache(model.config, len(ids))
        model.forward(torch.tensor(ids), 0, torch.arange(len(ids)) + 1, cache)
    return [
        LayerFactors(
            attention=_balance(layer.qkv),
            output=_balance(layer.output, model.config),
            mlp=_balance(layer.gate_up),
            down=_balance(layer.down),
        )
        for layer in model.layers
    ]


class _Recording(FloatLinear):
    """Remembers the largest magnitude that each of its inputs had."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.largest = torch.zeros(weight.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        self.largest = torch.maximum(self.largest, x.abs().amax(dim=0))
        return super().__call__(x)


def _balance(linear: object, shared_by_group: TransformerConfig | None = None) -> Factors:
    assert isinstance(linear, _Recording), "the model was built to record"
    inputs, weights = linear.largest, linear.weight.abs().amax(dim=0)
    if shared_by_group is not None:
        inputs, weights = (_largest_of_group(x, shared_by_group) for x in (inputs, weights))
    inputs, weights = inputs.clamp_min(1e-5), weights.clamp_min(1e-5)
    factors: Factors = (inputs**STRENGTH / weights ** (1 - STRENGTH)).numpy()
    return factors


def _largest_of_group(values: Tensor, config: TransformerConfig) -> Tensor:
    """[heads x head_size] to [kv_heads x head_size]: the largest over the heads of a group."""
    grouped = values.view(config.num_kv_heads, -1, config.head_size)
    return grouped.amax(dim=1).flatten()


def _over_group(factors: Factors, config: TransformerConfig) -> Factors:
    group = config.num_heads // config.num_kv_heads
    return factors.reshape(config.num_kv_heads, -1).repeat(group, axis=0).ravel()
