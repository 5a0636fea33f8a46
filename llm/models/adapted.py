"""A checkpoint with what adaptation added to it: low-rank corrections, a drafter, a template.

Adapters are safetensors files of int8 matrices with one float32 scale per row (`name` and
`name.scale`). `speak.safetensors` holds `layers.N.{qkv,output,gate_up,down}.{a,b}`, whose product
b @ a is added to the weights; `draft.safetensors` holds a whole small model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from llm.models.checkpoint import Checkpoint, CheckpointError, TokenizerData
from llm.models.rounding import quantize_channels
from llm.models.spec import DrafterConfig, TransformerConfig

SPEAK, DRAFT, TEMPLATE = "speak.safetensors", "draft.safetensors", "chat_template.jinja"

Floats = NDArray[np.float32]

_PARTS = {
    "self_attn.q_proj": "qkv",
    "self_attn.k_proj": "qkv",
    "self_attn.v_proj": "qkv",
    "self_attn.o_proj": "output",
    "mlp.gate_proj": "gate_up",
    "mlp.up_proj": "gate_up",
    "mlp.down_proj": "down",
}
"""Which adapter corrects a matrix; q, k and v share one, and so do gate and up."""


def save_adapter(path: Path, tensors: Mapping[str, Floats], metadata: Mapping[str, str]) -> None:
    """Write matrices in 8 bits; vectors stay as they are. Complete or not at all."""
    stored: dict[str, NDArray[np.generic]] = {}
    for name, values in tensors.items():
        if values.ndim < 2:
            stored[name] = values.astype(np.float32)
            continue
        stored[name], stored[f"{name}.scale"] = quantize_channels(values)
    partial = path.with_suffix(".partial")
    save_file(stored, partial, metadata=dict(metadata))
    partial.replace(path)


def read_adapter(path: Path) -> tuple[dict[str, Floats], dict[str, str]]:
    """The matrices in float32, and the metadata.

    Raises CheckpointError where the file is not an adapter.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not an adapter: {error}") from error
    tensors = {
        name: values * stored[f"{name}.scale"][:, None] if values.dtype == np.int8 else values
        for name, values in stored.items()
        if not name.endswith(".scale")
    }
    return tensors, metadata


def drafter_metadata(config: DrafterConfig) -> dict[str, str]:
    """A drafter's shape, as its file carries it."""
    return {"drafter": json.dumps(asdict(config))}


class AdaptedCheckpoint:
    """The base checkpoint, corrected by the adapters in `folder`.

    Raises CheckpointError where they do not fit it.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self._checkpoint = checkpoint
        self._speak, _ = read_adapter(folder / SPEAK)
        self._draft: dict[str, Floats] = {}
        self.drafter: DrafterConfig | None = None
        if (folder / DRAFT).is_file():
            self._draft, metadata = read_adapter(folder / DRAFT)
            self.drafter = _read_config(folder / DRAFT, metadata)
        self._template = (folder / TEMPLATE).read_text("utf-8")

    @property
    def config(self) -> TransformerConfig:
        """Shape of the backbone."""
        return self._checkpoint.config

    @property
    def tokenizer(self) -> TokenizerData:
        """The base's vocabulary with the template that the adapters were trained on."""
        return replace(self._checkpoint.tokenizer, chat_template=self._template)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Floats:
        """The corrected weight with the Hugging Face name `name`.

        The drafter's are named `drafter.` and what its file calls them.
        """
        if name.startswith("drafter."):
            return self._drafter_tensor(name, shape)
        weight = self._checkpoint.tensor(name, shape)
        if not name.startswith("model.layers."):
            return weight
        _, _, layer, rest = name.split(".", 3)
        matrix = rest.removesuffix(".weight")
        if matrix not in _PARTS:
            return weight
        a, b = (self._speak[f"layers.{layer}.{_PARTS[matrix]}.{side}"] for side in "ab")
        rows = b[rows_of(matrix, self.config)]
        if (rows.shape[0], a.shape[1]) != shape:
            raise CheckpointError(f"the adapter of {name} does not fit its shape {shape}")
        weight += rows @ a
        return weight

    def _drafter_tensor(self, name: str, shape: tuple[int, ...]) -> Floats:
        values = self._draft.get(name.removeprefix("drafter."))
        if values is None or values.shape != shape:
            found = "nothing" if values is None else f"shape {values.shape}"
            raise CheckpointError(f"the drafter needs {name} of shape {shape}, found {found}")
        return values.copy()


class DrafterCheckpoint:
    """The drafter of an adapted checkpoint as a backbone of its own, with few layers and tokens.

    Its head is the rows of the base's embedding that it can draft; it has no use for the table
    at the other end, since its inputs are computed: see `token_inputs`.
    """

    drafter = None

    def __init__(self, adapted: Checkpoint) -> None:
        assert adapted.drafter is not None, "the checkpoint has a drafter"
        self._adapted = adapted
        self._drafter = adapted.drafter
        self._base = adapted.config
        self.config = replace(
            adapted.config,
            num_layers=self._drafter.num_layers,
            vocab_size=len(self._drafter.token_ids),
        )

    @property
    def tokenizer(self) -> TokenizerData:
        """The whole model's."""
        return self._adapted.tokenizer

    def tensor(self, name: str, shape: tuple[int, ...]) -> Floats:
        """The drafter's weight with the Hugging Face name `name`."""
        if name == "model.embed_tokens.weight":
            return self._embedding()[list(self._drafter.token_ids)]
        if name == "model.norm.weight":
            return self._adapted.tensor(name, shape)
        _, _, layer, rest = name.split(".", 3)
        part = rest.removesuffix(".weight")
        if part not in _PARTS:
            # Norms are not trained: they are those of the layer that the drafter's began as.
            origin = self._base.num_layers - self.config.num_layers + int(layer)
            return self._adapted.tensor(f"model.layers.{origin}.{rest}", shape)
        rows = sum(size for n, size in self._sizes().items() if _PARTS[n] == _PARTS[part])
        name = f"drafter.layers.{layer}.{_PARTS[part]}.weight"
        whole = self._adapted.tensor(name, (rows, shape[1]))
        return whole[rows_of(part, self.config)].copy()

    def token_inputs(self) -> Floats:
        """[vocab, hidden]: what each token adds to the features of the position before it."""
        size = self._base.hidden_size
        return self._embedding() @ self._adapted.tensor("drafter.next.weight", (size, size)).T

    def mask_inputs(self) -> Floats:
        """[num_drafts - 1, hidden]: what stands in for text that is not there yet."""
        shape = (self._drafter.num_drafts - 1, self._base.hidden_size)
        return self._adapted.tensor("drafter.masks", shape)

    def _embedding(self) -> Floats:
        table = (self._base.vocab_size, self._base.hidden_size)
        return self._adapted.tensor("model.embed_tokens.weight", table)

    def _sizes(self) -> dict[str, int]:
        """Rows of each matrix."""
        config = self.config
        sizes = {f"self_attn.{n}_proj": config.kv_size for n in "kv"}
        sizes["self_attn.q_proj"] = config.num_heads * config.head_size
        sizes |= {f"mlp.{n}_proj": config.intermediate_size for n in ("gate", "up")}
        return sizes | {"self_attn.o_proj": config.hidden_size, "mlp.down_proj": config.hidden_size}


def rows_of(matrix: str, config: TransformerConfig) -> slice:
    """The rows of a shared matrix or adapter that belong to one matrix."""
    query, inner = config.num_heads * config.head_size, config.intermediate_size
    match matrix:
        case "self_attn.q_proj":
            return slice(0, query)
        case "self_attn.k_proj":
            return slice(query, query + config.kv_size)
        case "self_attn.v_proj":
            return slice(query + config.kv_size, None)
        case "mlp.gate_proj":
            return slice(0, inner)
        case "mlp.up_proj":
            return slice(inner, None)
    return slice(None)


def drafter_config(fields: Mapping[str, Any]) -> DrafterConfig:
    """A drafter's shape from what JSON made of it. Raises KeyError, ValueError or TypeError."""
    return DrafterConfig(
        num_layers=int(fields["num_layers"]),
        depths=tuple(map(int, fields["depths"])),
        num_drafts=int(fields["num_drafts"]),
        token_ids=tuple(map(int, fields["token_ids"])),
    )


def _read_config(path: Path, metadata: Mapping[str, str]) -> DrafterConfig:
    try:
        return drafter_config(json.loads(metadata["drafter"]))
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} does not say what drafter it holds") from error
