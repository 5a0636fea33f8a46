"""From a Hugging Face folder to a model: backbone, how it decodes, tokenizer and chat template.

In: config.json, *.safetensors, tokenizer.json, tokenizer_config.json, and generation_config.json
where there is one. The family's row in `families` says how they are to be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from llm.models.checkpoint import CheckpointError
from llm.models.config_fields import Fields
from llm.models.families import Family, find_family
from llm.models.linear import FloatLinear, Linear
from llm.models.safetensors import TensorFolder, read_json
from llm.models.spec import Attention, DiffusionSpec, TransformerConfig
from llm.models.tokenizer_json import FolderTokenizer, named_token, read_tokenizer
from llm.models.transformer import Transformer


class LoadedModel(NamedTuple):
    """A model read from a folder."""

    backbone: Transformer
    spec: DiffusionSpec
    tokenizer: FolderTokenizer
    chat_template: str


def load_folder(
    folder: Path, dtype: torch.dtype, linear: Callable[[Tensor], Linear] = FloatLinear
) -> LoadedModel:
    """Read the model in `folder`.

    dtype: what its weights become and it computes in. linear: what its matrices become.
    Raises CheckpointError, with one line that says what is wrong, where it cannot be used.
    """
    values = read_json(folder / "config.json")
    family = find_family(values, folder.name)
    fields = Fields(folder / "config.json", values, family.config_names)
    weights = FolderWeights(folder, family, fields, dtype)
    tokenizer, template = read_tokenizer(
        folder, weights.config.vocab_size, family.template_variables
    )
    backbone = Transformer(weights, linear)
    weights.check_all_read()
    return LoadedModel(backbone, _spec(folder, family, fields, tokenizer), tokenizer, template)


class FolderWeights:
    """A folder's weights under the names that Llama's have.

    config: shape of the backbone. Raises CheckpointError where folder and config do not fit.
    """

    def __init__(self, folder: Path, family: Family, fields: Fields, dtype: torch.dtype) -> None:
        self._folder = folder
        self._family = family
        self._dtype = dtype
        self._pattern = re.compile("|".join(map(re.escape, family.tensor_names)) or "(?!)")
        self._tensors = TensorFolder(folder)
        head = self._name("lm_head.weight")
        self.config = family.shape(fields, tied_head=head not in self._tensors.unread())
        self._ignored = {head} if self.config.tied_head else set()

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The weight with the name `name`, rows first; routers in float32.

        Raises CheckpointError with the folder's name for it and both shapes where it does not fit.
        """
        # A router that was rounded sends rows to other experts.
        dtype = torch.float32 if ".mlp.gate." in name else self._dtype
        if self._family.fused_qkv and (part := _fused_part(name, self.config)):
            rows = self.config.num_heads * self.config.head_size + 2 * self.config.kv_size
            return self._tensors.read(self._name(name), (rows, *shape[1:]), dtype, part)
        return self._tensors.read(self._name(name), shape, dtype)

    def check_all_read(self) -> None:
        """Raise CheckpointError where the folder holds tensors that the family does not have."""
        unread = [
            name
            for name in self._tensors.unread()
            if name not in self._ignored and not name.endswith("rotary_emb.inv_freq")
        ]
        if unread:
            raise CheckpointError(
                f"{self._folder} holds {len(unread)} tensors that its model_type does not have, "
                f"such as {unread[0]}"
            )

    def _name(self, ours: str) -> str:
        return self._pattern.sub(lambda found: self._family.tensor_names[found[0]], ours)


def _fused_part(name: str, config: TransformerConfig) -> tuple[int, int] | None:
    """Rows of the fused tensor, queries first, that are the tensor `name`."""
    first = 0
    for part, rows in (
        ("q_proj", config.num_heads * config.head_size),
        ("k_proj", config.kv_size),
        ("v_proj", config.kv_size),
    ):
        if f"self_attn.{part}." in name:
            return first, first + rows
        first += rows
    return None


def _spec(
    folder: Path, family: Family, fields: Fields, tokenizer: FolderTokenizer
) -> DiffusionSpec:
    attention = family.attention
    if attention is Attention.BLOCK_CAUSAL and "mdlm" in folder.name:
        # The same model type is trained with blocks or without; only the name tells.
        attention = Attention.FULL
    block_length = _block_length(folder, family, fields)
    return DiffusionSpec(
        mask_id=_mask_id(folder, family, fields, tokenizer),
        eos_ids=_eos_ids(folder, family, fields, tokenizer),
        logit_shift=family.logit_shift,
        drafts_verified=attention is Attention.CAUSAL_VERIFIED,
        attention=attention,
        mask_shift=family.mask_shift,
        masks_causal=family.masks_causal,
        block_length=block_length,
        sub_block_length=min(family.sub_block_length, block_length),
        blocks_from_prompt_end=attention is Attention.FULL,
        commit_forward=attention is not Attention.FULL,
    )


def _block_length(folder: Path, family: Family, fields: Fields) -> int:
    """From the config, else from a name that ends in -b and the length, else the family's."""
    named = re.search(r"-b(\d+)$", folder.name)
    default = int(named[1]) if named else family.block_length
    if (length := fields.integer("block_size", default)) < 1:
        raise CheckpointError(f"{folder}: blocks of {length} tokens make no sense")
    return length


def _mask_id(folder: Path, family: Family, fields: Fields, tokenizer: FolderTokenizer) -> int:
    """What the config says, else the tokenizer, else a token of a known name, else a known id."""
    mask_id = fields.get("mask_token_id")
    if mask_id is None:
        names = (named_token(folder, "mask_token"), *family.mask_tokens)
        known = tokenizer.special_tokens
        mask_id = next((known[name] for name in names if name in known), family.mask_id)
    if not isinstance(mask_id, int) or not 0 <= mask_id < tokenizer.vocab_size:
        raise CheckpointError(
            f"{folder} does not say which token is the mask; set mask_token_id in its config.json"
        )
    return mask_id


def _eos_ids(
    folder: Path, family: Family, fields: Fields, tokenizer: FolderTokenizer
) -> frozenset[int]:
    said = [fields.get("eos_token_id")]
    if (file := folder / "generation_config.json").exists():
        said.append(read_json(file).get("eos_token_id"))
    ids = {i for ids in said for i in (ids if isinstance(ids, list) else [ids])}
    names = (named_token(folder, "eos_token"), *family.eos_tokens)
    ids |= {tokenizer.special_tokens.get(name) for name in names if name is not None}
    if not (found := frozenset(i for i in ids if isinstance(i, int))):
        raise CheckpointError(f"{folder} does not say which token ends the text")
    return found
