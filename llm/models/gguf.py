"""Reads one GGUF file: the backbone's shape, its weights in float32, tokenizer and template.

Weights come out under the names and in the layout of Hugging Face checkpoints, so that the
transformer knows one layout only. Knows nothing about how they are stored or computed later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from numpy.typing import NDArray

from llm.models.checkpoint import CheckpointError, TokenizerData
from llm.models.spec import TransformerConfig

READABLE_TYPES = frozenset({"F32", "F16", "Q4_0", "Q4_1", "Q8_0"})
"""Quantisation types that are read; each is tested against a slow reading of the format."""

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    """An open GGUF file of a Llama-architecture model.

    config: shape of the backbone. tokenizer: its vocabulary and chat template.
    Raises CheckpointError where the file is damaged, of another architecture or lacks a field.
    """

    drafter = None

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise CheckpointError(f"{path} is not a readable GGUF file: {error}") from error
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if (architecture := self._field("general.architecture")) != "llama":
            raise CheckpointError(f"{path}: architecture '{architecture}' is not supported yet")
        self.config = self._read_config()
        self.tokenizer = self._read_tokenizer()

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The weight with the Hugging Face name `name` as float32, rows first.

        Raises CheckpointError with the name and both shapes where it does not fit `shape`.
        """
        tensor = self._tensors.get(_gguf_name(name))
        if tensor is None:
            raise CheckpointError(f"{self._path}: tensor {name} is missing")
        kind = GGMLQuantizationType(tensor.tensor_type).name
        if kind not in READABLE_TYPES:
            raise CheckpointError(f"{self._path}: {name} is stored as {kind}, which is not read")
        found = tuple(int(size) for size in reversed(tensor.shape))
        if found != shape:
            raise CheckpointError(f"{self._path}: {name} has shape {found}, expected {shape}")
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _halves_from_pairs(values, self.config.head_size)
        # The reader's memory map is read-only: hand out an array that can be written.
        return np.array(values, dtype=np.float32, copy=True)

    def _read_config(self) -> TransformerConfig:
        hidden = int(self._field("llama.embedding_length"))
        num_heads = int(self._field("llama.attention.head_count"))
        return TransformerConfig(
            num_layers=int(self._field("llama.block_count")),
            hidden_size=hidden,
            intermediate_size=int(self._field("llama.feed_forward_length")),
            num_heads=num_heads,
            num_kv_heads=int(self._field("llama.attention.head_count_kv")),
            head_size=int(self._field("llama.rope.dimension_count", hidden // num_heads)),
            vocab_size=len(self._field("tokenizer.ggml.tokens")),
            context_length=int(self._field("llama.context_length")),
            rope_theta=self._rope_theta(),
            norm_epsilon=float(self._field("llama.attention.layer_norm_rms_epsilon")),
        )

    def _rope_theta(self) -> float:
        """Base of the rotary embedding, where positions are not stretched."""
        if (kind := self._field("llama.rope.scaling.type", "none")) != "none":
            raise CheckpointError(f"{self._path}: positions scaled with '{kind}' are not read")
        return float(self._field("llama.rope.freq_base", 10_000.0))

    def _read_tokenizer(self) -> TokenizerData:
        kinds = self._field("tokenizer.ggml.token_type")
        return TokenizerData(
            tokens=tuple(self._field("tokenizer.ggml.tokens")),
            merges=tuple(self._field("tokenizer.ggml.merges")),
            # 3 = control token, gguf.TokenType.CONTROL
            special_ids=frozenset(i for i, kind in enumerate(kinds) if kind == 3),
            eos_id=int(self._field("tokenizer.ggml.eos_token_id")),
            chat_template=str(self._field("tokenizer.chat_template")),
        )

    def _field(self, name: str, default: Any = None) -> Any:
        field = self._reader.fields.get(name)
        if field is not None:
            return field.contents()
        if default is None:
            raise CheckpointError(f"{self._path}: field {name} is missing")
        return default


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    ours = {hf: ggml for ggml, hf in _LAYER_NAMES.items()}
    return f"blk.{layer}.{ours[rest.removesuffix('.weight')]}.weight"


def _halves_from_pairs(weight: NDArray[np.float32], head_size: int) -> NDArray[np.float32]:
    """GGUF rotates neighbours (2i, 2i+1), Hugging Face halves (i, i + n/2): reorder the rows."""
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_size, head_size // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
