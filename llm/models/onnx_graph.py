"""Builds the ONNX graph of a Llama-shaped backbone in 8-bit integers, node by node.

In: a checkpoint. Out: a graph for ONNX Runtime whose caches are updated in place and whose rows
do not depend on each other: one scale per output channel of the weights, one per row of the
activations, exact int32 sums between. Knows nothing of masks, drafts or requests.

Several sequences share a forward: their rows are packed one behind the other through all linear
layers, and only attention splits them, each to its own cache. GroupQueryAttention takes several
sequences at once only with one row each, so there is one such node for each sequence.

Inputs: `hidden` [1, rows, hidden], `lengths` [sequences] rows of each sequence, `wanted` [n] rows
that need logits; for each sequence s: `bias_s` [1, 1, its rows, its keys] (0 where a row sees a
key), `last_s` [1] and `total_s` (what the operator calls seqlens_k and total_sequence_length), and
for each layer past keys and values [1, kv_heads, capacity, head_size]. Outputs: `logits` [n, vocab]
and the same caches; where a drafter reads along, `features` [1, rows, hidden] for it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from llm.models.checkpoint import Checkpoint
from llm.models.rotary import pair_speeds
from llm.models.rounding import quantize_channels

CONTRIB = "com.microsoft"
"""Operator set of ONNX Runtime's fused operators (ContribOperators.md in its documentation)."""

ACTIVATION_LIMIT = 127
_ZERO_POINT = 128


def cache_names(num_layers: int, sequence: int) -> list[tuple[str, str]]:
    """(input, output) name of each cache of a sequence, in order of layers, keys before values."""
    return [
        (f"past_{kind}_{layer}_{sequence}", f"present_{kind}_{layer}_{sequence}")
        for layer in range(num_layers)
        for kind in ("key", "value")
    ]


def move_weights(weights: list[onnx.TensorProto], file: Path) -> None:
    """Move the large weights into one file that graphs in the same folder then refer to.

    ONNX Runtime maps that file into memory, so several graphs share it.
    """
    with file.open("wb") as out:
        # Shape inference wants to see constants in the graph.
        for weight in (w for w in weights if len(w.raw_data) > 1024):
            # Pages of 4096 bytes are what can be mapped.
            out.write(b"\0" * (-out.tell() % 4096))
            set_external_data(weight, file.name, out.tell(), len(weight.raw_data))
            out.write(weight.raw_data)
            weight.ClearField("raw_data")


@dataclass(frozen=True, slots=True)
class _Attention:
    """Where the attention of a layer belongs, whose nodes depend on the number of sequences."""

    layer: int
    qkv: str
    attended: str


class GraphBuilder:
    """Turns a checkpoint into weights, once, and graphs for any number of sequences over them.

    unsigned_weights: store weights with a zero point of 128. The sums are the same; signed ones
    are faster where the processor multiplies them exactly (VNNI, AMX) and wrong where it does not.
    feature_depths: after how many layers the drafter reads, none without a drafter.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        unsigned_weights: bool,
        feature_depths: tuple[int, ...] = (),
    ) -> None:
        self.checkpoint = checkpoint
        self.feature_depths = feature_depths
        self.weights: list[onnx.TensorProto] = []
        self._unsigned_weights = unsigned_weights
        self._nodes: list[onnx.NodeProto | _Attention] = []
        self._build()

    def graph(self, num_sequences: int) -> onnx.ModelProto:
        """The model for forwards that num_sequences share, over the builder's weights."""
        nodes: list[onnx.NodeProto] = []
        for node in self._nodes:
            if isinstance(node, _Attention):
                nodes += self._attention(node, num_sequences)
            else:
                nodes.append(node)
        inputs, outputs = self._inputs(num_sequences), self._outputs(num_sequences)
        return helper.make_model(
            helper.make_graph(nodes, "backbone", inputs, outputs, self.weights),
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)],
            ir_version=10,
        )

    def _build(self) -> None:
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
        if self.feature_depths:
            self._features()

    def _features(self) -> None:
        """What a drafter reads: normed states of some depths, which are there anyway, mixed."""
        config, depths = self.checkpoint.config, self.feature_depths
        last = config.num_layers
        read = ["final_normed" if d == last else f"l{d}_attention_normed" for d in depths]
        states = self._add("Concat", read, "features_read", axis=-1)
        shape = (config.hidden_size, len(depths) * config.hidden_size)
        weight = self.checkpoint.tensor("drafter.features.weight", shape)
        self._linear("features", *self._quantized("features", states), weight)

    def _constants(self) -> None:
        config = self.checkpoint.config
        speeds = pair_speeds(config.head_size, config.rope_theta)
        angles = np.outer(np.arange(config.context_length), speeds)
        self._weight("cos", np.cos(angles).astype(np.float32))
        self._weight("sin", np.sin(angles).astype(np.float32))
        self._weight("step", np.array(1 / ACTIVATION_LIMIT, np.float32))
        self._weight("zero_point", np.array(_ZERO_POINT, np.uint8))
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
        attended = f"{at}_attended"
        self._nodes.append(_Attention(layer, qkv, attended))
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

    def _attention(self, place: _Attention, num_sequences: int) -> list[onnx.NodeProto]:
        """Attention of every sequence over its own cache; rows split before and packed behind."""
        config, sequences = self.checkpoint.config, range(num_sequences)
        nodes: list[onnx.NodeProto] = []
        parts, attended = [place.qkv], [place.attended]
        if num_sequences > 1:
            parts = [f"{place.qkv}_{s}" for s in sequences]
            attended = [f"{place.attended}_{s}" for s in sequences]
            nodes = [helper.make_node("Split", [place.qkv, "lengths"], parts, axis=1)]
        for s in sequences:
            keys, values = cache_names(config.num_layers, s)[2 * place.layer : 2 * place.layer + 2]
            counts = [f"last_{s}", f"total_{s}", "cos", "sin", "", f"bias_{s}"]
            node = helper.make_node(
                "GroupQueryAttention",
                [parts[s], "", "", keys[0], values[0], *counts],
                [attended[s], keys[1], values[1]],
                domain=CONTRIB,
                num_heads=config.num_heads,
                kv_num_heads=config.num_kv_heads,
                do_rotary=1,
                causal=0,
                scale=config.head_size**-0.5,
            )
            nodes.append(node)
        if num_sequences > 1:
            nodes.append(helper.make_node("Concat", attended, [place.attended], axis=1))
        return nodes

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
        it: a row's result would depend on its neighbours. A row of zeros divides 0 by 0 and gets
        any integers, which its scale of 0 turns into zeros again.
        """
        size = self._add("Abs", [x], f"{at}_size")
        largest = self._add("ReduceMax", [size, "last_axis"], f"{at}_largest", keepdims=1)
        unit = self._add("Div", [x, largest], f"{at}_unit")
        return self._add("QuantizeLinear", [unit, "step", "zero_point"], f"{at}_int8"), largest

    def _linear(self, name: str, x: str, scale: str, weight: NDArray[np.float32]) -> str:
        """`x @ weight.T` for integers x and the row maxima `scale`; the result is `name`."""
        integers, channel_scale = quantize_channels(weight)
        stored: NDArray[Any] = integers.T
        zero = np.array(0, np.int8)
        if self._unsigned_weights:
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
        self._nodes.append(helper.make_node(op, inputs, list(outputs), domain=domain, **options))
        return outputs[0]

    def _weight(self, name: str, values: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _inputs(self, num_sequences: int) -> list[onnx.ValueInfoProto]:
        config = self.checkpoint.config
        shapes: dict[str, tuple[int, list[int | str]]] = {
            "hidden": (TensorProto.FLOAT, [1, "rows", config.hidden_size]),
            "lengths": (TensorProto.INT64, [num_sequences]),
            "wanted": (TensorProto.INT64, ["num_wanted"]),
        }
        for s in range(num_sequences):
            shapes[f"bias_{s}"] = (TensorProto.FLOAT, [1, 1, f"rows_{s}", f"keys_{s}"])
            shapes[f"last_{s}"] = (TensorProto.INT32, [1])
            shapes[f"total_{s}"] = (TensorProto.INT32, [])
        inputs = [helper.make_tensor_value_info(n, *spec) for n, spec in shapes.items()]
        for s in range(num_sequences):
            inputs += [self._cache_info(past) for past, _ in cache_names(config.num_layers, s)]
        return inputs

    def _outputs(self, num_sequences: int) -> list[onnx.ValueInfoProto]:
        config = self.checkpoint.config
        logits = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, ["num_wanted", config.vocab_size]
        )
        outputs = [logits]
        if self.feature_depths:
            shape: list[int | str] = [1, "rows", config.hidden_size]
            outputs.append(helper.make_tensor_value_info("features", TensorProto.FLOAT, shape))
        for s in range(num_sequences):
            outputs += [
                self._cache_info(present) for _, present in cache_names(config.num_layers, s)
            ]
        return outputs

    def _cache_info(self, name: str) -> onnx.ValueInfoProto:
        config = self.checkpoint.config
        shape: list[int | str] = [1, config.num_kv_heads, "capacity", config.head_size]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
