"""Builds the ONNX graph of a Llama-shaped backbone in 8-bit integers, node by node.

In: a checkpoint. Out: a graph for ONNX Runtime whose caches are updated in place and whose rows
do not depend on each other: one scale per output channel of the weights, one per row of the
activations, exact int32 sums between. Knows nothing of masks, drafts or requests.

Inputs: `hidden` [sequences, rows, hidden], `bias` [sequences, 1, rows, keys] (0 where a row sees a
key), `last` [sequences] and `total` (what GroupQueryAttention calls seqlens_k and
total_sequence_length), `wanted` [n] rows of the flattened batch that need logits, and for each
layer past keys and values [sequences, kv_heads, capacity, head_size]. Outputs: `logits` [n, vocab]
and the same caches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from llm.models.checkpoint import Checkpoint
from llm.models.spec import TransformerConfig

CONTRIB = "com.microsoft"
"""Operator set of ONNX Runtime's fused operators (ContribOperators.md in its documentation)."""

ACTIVATION_LIMIT = 127
_ZERO_POINT = 128


def cache_names(config: TransformerConfig) -> list[tuple[str, str]]:
    """(input, output) name of every cache, in order of layers, keys before values."""
    return [
        (f"past_{kind}_{layer}", f"present_{kind}_{layer}")
        for layer in range(config.num_layers)
        for kind in ("key", "value")
    ]


def quantize_channels(
    weight: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """weight: [out, in]. Returns int8 [out, in] within ±127 and the scale of each row, [out]."""
    scale = np.maximum(np.abs(weight).max(axis=1), 1e-12).astype(np.float32) / 127
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


@dataclass
class GraphBuilder:
    """Collects nodes and weights of one graph.

    unsigned_weights: store weights with a zero point of 128. The sums are the same; signed ones
    are faster where the processor multiplies them exactly (VNNI, AMX) and wrong where it does not.
    """

    checkpoint: Checkpoint
    unsigned_weights: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def build(self) -> onnx.ModelProto:
        """The whole model as a graph, weights inside."""
        config = self.checkpoint.config
        self._constants()
        residual, delta = "hidden", ""
        for layer in range(config.num_layers):
            residual, delta = self._layer(layer, residual, delta)
        normed, _ = self._norm("final", "model.norm.weight", residual, delta)
        flat = self._add("Reshape", [normed, "flat_shape"], "final_flat")
        rows = self._add("Gather", [flat, "wanted"], "final_rows", axis=0)
        embedding = self.checkpoint.tensor(
            "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
        )
        self._linear("logits", *self._quantized("head", rows), embedding)
        graph = helper.make_graph(
            self.nodes, "backbone", self._inputs(), self._outputs(), self.weights
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)],
            ir_version=10,
        )

    def _constants(self) -> None:
        config = self.checkpoint.config
        steps = np.arange(0, config.head_size, 2) / config.head_size
        angles = np.outer(np.arange(config.context_length), config.rope_theta**-steps)
        self._weight("cos", np.cos(angles).astype(np.float32))
        self._weight("sin", np.sin(angles).astype(np.float32))
        self._weight("step", np.array(1 / ACTIVATION_LIMIT, np.float32))
        self._weight("zero_point", np.array(_ZERO_POINT, np.uint8))
        self._weight("tiny", np.array(1e-12, np.float32))
        self._weight("last_axis", np.array([-1], np.int64))
        self._weight("flat_shape", np.array([-1, config.hidden_size], np.int64))
        self._weight("halves", np.array([config.intermediate_size] * 2, np.int64))

    def _layer(self, layer: int, residual: str, delta: str) -> tuple[str, str]:
        """One layer. Returns the residual stream and what is still to be added to it."""
        config, at = self.checkpoint.config, f"l{layer}"
        prefix = f"model.layers.{layer}."
        hidden, inner = config.hidden_size, config.intermediate_size
        heads = config.num_heads * config.head_size

        def weight(name: str, *shape: int) -> NDArray[np.float32]:
            return self.checkpoint.tensor(f"{prefix}{name}.weight", shape)

        normed, residual = self._norm(
            f"{at}_attention", f"{prefix}input_layernorm.weight", residual, delta
        )
        projections = [weight("self_attn.q_proj", heads, hidden)]
        projections += [weight(f"self_attn.{n}_proj", config.kv_size, hidden) for n in "kv"]
        qkv = self._linear(
            f"{at}_qkv", *self._quantized(f"{at}_qkv", normed), np.concatenate(projections)
        )
        attended = self._attention(layer, qkv)
        delta = self._linear(
            f"{at}_output",
            *self._quantized(f"{at}_output", attended),
            weight("self_attn.o_proj", hidden, heads),
        )
        normed, residual = self._norm(
            f"{at}_mlp", f"{prefix}post_attention_layernorm.weight", residual, delta
        )
        both = np.concatenate(
            (weight("mlp.gate_proj", inner, hidden), weight("mlp.up_proj", inner, hidden))
        )
        gate_up = self._linear(f"{at}_gate_up", *self._quantized(f"{at}_gate_up", normed), both)
        self._add("Split", [gate_up, "halves"], f"{at}_gate", f"{at}_up", axis=-1)
        # QuickGelu with alpha 1 is SiLU: x * sigmoid(x).
        gate = self._add("QuickGelu", [f"{at}_gate"], f"{at}_silu", domain=CONTRIB, alpha=1.0)
        product = self._add("Mul", [gate, f"{at}_up"], f"{at}_product")
        delta = self._linear(
            f"{at}_down",
            *self._quantized(f"{at}_down", product),
            weight("mlp.down_proj", hidden, inner),
        )
        return residual, delta

    def _attention(self, layer: int, qkv: str) -> str:
        config = self.checkpoint.config
        (past_key, key), (past_value, value) = cache_names(config)[2 * layer : 2 * layer + 2]
        return self._add(
            "GroupQueryAttention",
            [qkv, "", "", past_key, past_value, "last", "total", "cos", "sin", "", "bias"],
            f"l{layer}_attended",
            key,
            value,
            domain=CONTRIB,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
            causal=0,
            scale=config.head_size**-0.5,
        )

    def _norm(self, at: str, weight: str, residual: str, delta: str) -> tuple[str, str]:
        """RMSNorm of residual + delta. Returns the normed values and the sum."""
        config = self.checkpoint.config
        gain = self._weight(f"{at}_gain", self.checkpoint.tensor(weight, (config.hidden_size,)))
        if not delta:
            normed = self._add(
                "SimplifiedLayerNormalization",
                [residual, gain],
                f"{at}_normed",
                axis=-1,
                epsilon=config.norm_epsilon,
                stash_type=1,
            )
            return normed, residual
        normed = self._add(
            "SkipSimplifiedLayerNormalization",
            [residual, delta, gain],
            f"{at}_normed",
            "",
            "",
            f"{at}_sum",
            domain=CONTRIB,
            epsilon=config.norm_epsilon,
        )
        return normed, f"{at}_sum"

    def _quantized(self, at: str, x: str) -> tuple[str, str]:
        """Activations in 8 bits, one scale per row. Returns the integers and the row maxima.

        DynamicQuantizeLinear would take one scale for all rows, and so would any scaling after
        it: a row's result would depend on its neighbours.
        """
        size = self._add("Abs", [x], f"{at}_size")
        largest = self._add("ReduceMax", [size, "last_axis"], f"{at}_largest", keepdims=1)
        largest = self._add("Max", [largest, "tiny"], f"{at}_scale")
        unit = self._add("Div", [x, largest], f"{at}_unit")
        return self._add("QuantizeLinear", [unit, "step", "zero_point"], f"{at}_int8"), largest

    def _linear(self, name: str, x: str, scale: str, weight: NDArray[np.float32]) -> str:
        """`x @ weight.T` for integers x and the row maxima `scale`; the result is `name`."""
        integers, channel_scale = quantize_channels(weight)
        stored: NDArray[Any] = integers.T
        zero = np.array(0, np.int8)
        if self.unsigned_weights:
            stored = (integers.T.astype(np.int16) + _ZERO_POINT).astype(np.uint8)
            zero = np.array(_ZERO_POINT, np.uint8)
        product = self._add(
            "MatMulIntegerToFloat",
            [
                x,
                self._weight(f"{name}_weight", stored),
                "step",
                self._weight(f"{name}_channel_scale", channel_scale),
                "zero_point",
                self._weight(f"{name}_weight_zero", zero),
            ],
            f"{name}_product",
            domain=CONTRIB,
        )
        return self._add("Mul", [product, scale], name)

    def _add(
        self, op: str, inputs: list[str], *outputs: str, domain: str = "", **options: Any
    ) -> str:
        self.nodes.append(helper.make_node(op, inputs, list(outputs), domain=domain, **options))
        return outputs[0]

    def _weight(self, name: str, values: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        config = self.checkpoint.config
        shapes: dict[str, tuple[int, list[int | str]]] = {
            "hidden": (TensorProto.FLOAT, ["sequences", "rows", config.hidden_size]),
            "bias": (TensorProto.FLOAT, ["sequences", 1, "rows", "keys"]),
            "last": (TensorProto.INT32, ["sequences"]),
            "total": (TensorProto.INT32, []),
            "wanted": (TensorProto.INT64, ["num_wanted"]),
        }
        inputs = [helper.make_tensor_value_info(n, *spec) for n, spec in shapes.items()]
        return inputs + [self._cache_info(past) for past, _ in cache_names(config)]

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        config = self.checkpoint.config
        logits = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, ["num_wanted", config.vocab_size]
        )
        return [logits, *(self._cache_info(present) for _, present in cache_names(config))]

    def _cache_info(self, name: str) -> onnx.ValueInfoProto:
        config = self.checkpoint.config
        shape: list[int | str] = [
            "sequences",
            config.num_kv_heads,
            "capacity",
            config.head_size,
        ]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
