"""Small random checkpoints of every family, written in its real names and config format.

The weights are made under neutral names, and a separate table says what each family calls them:
nothing here goes through the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.llm.slow_model import Array, Shape, Tensors
from tests.llm.tiny import TEMPLATE, byte_alphabet

VOCAB = 288
"""Rows of the embedding; the tokenizer has fewer tokens, as those of real checkpoints do."""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|role_end|>", "<|mask|>")
TOOL_TAG = "<tool call>"
"""An added token that is not special: text when the model writes it."""
MASK = 256 + CONTROL.index("<|mask|>")


@dataclass(frozen=True)
class Tiny:
    """A family: its shape, the values of its config.json, and its names for our tensors."""

    shape: Shape
    config: Callable[[Shape], dict[str, Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    fused: str | None = None


def make_weights(shape: Shape, seed: int = 0) -> Tensors:
    """Random weights, large enough that every part shows in the logits."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Array:
        return rng.normal(0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def vector(size: int, mean: float = 1.0) -> Array:
        return rng.normal(mean, 0.3, size).astype(np.float32)

    def mlp(at: str, inner: int) -> Tensors:
        return {
            f"{at}gate": matrix(inner, shape.hidden),
            f"{at}up": matrix(inner, shape.hidden),
            f"{at}down": matrix(shape.hidden, inner),
        }

    tensors = {"embedding": matrix(VOCAB, shape.hidden) * 4, "norm": vector(shape.hidden)}
    if not shape.tied:
        tensors["head"] = matrix(VOCAB, shape.hidden)
    for layer in range(shape.layers):
        at = f"{layer}."
        tensors |= {f"{at}norm1": vector(shape.hidden), f"{at}norm2": vector(shape.hidden)}
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            tensors[f"{at}{name}"] = matrix(heads * shape.head, shape.hidden)
            if shape.qkv_bias:
                tensors[f"{at}{name}.bias"] = vector(heads * shape.head, 0.0)
        tensors[f"{at}o"] = matrix(shape.hidden, shape.heads * shape.head)
        if shape.qk_norm:
            tensors |= {f"{at}qnorm": vector(shape.head), f"{at}knorm": vector(shape.head)}
        if not shape.experts or layer < shape.dense_layers:
            tensors |= mlp(at, shape.inner)
            continue
        tensors[f"{at}router"] = matrix(shape.experts, shape.hidden)
        if shape.sigmoid:
            tensors[f"{at}router.bias"] = vector(shape.experts, 0.0)
        for expert in range(shape.experts):
            tensors |= mlp(f"{at}expert{expert}.", shape.expert_inner)
        if shape.shared_inner:
            tensors |= mlp(f"{at}shared.", shape.shared_inner)
    return tensors


LLAMA_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layer": "model.layers.{}.",
    "norm1": "input_layernorm.weight",
    "norm2": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q.bias": "self_attn.q_proj.bias",
    "k.bias": "self_attn.k_proj.bias",
    "v.bias": "self_attn.v_proj.bias",
    "o": "self_attn.o_proj.weight",
    "qnorm": "self_attn.q_norm.weight",
    "knorm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "router.bias": "mlp.gate.expert_bias",
    "expert": "mlp.experts.{}.{}_proj.weight",
    "shared": "mlp.shared_experts.{}_proj.weight",
}


def their_name(ours: str, names: Mapping[str, str]) -> str:
    """What a checkpoint calls one of our tensors."""
    names = {**LLAMA_NAMES, **names}
    if not ours[0].isdigit():
        return names[ours]
    layer, _, rest = ours.partition(".")
    at = names["layer"].format(layer)
    if rest.startswith("expert"):
        expert, _, part = rest.removeprefix("expert").partition(".")
        return at + names["expert"].format(expert, part)
    if rest.startswith("shared."):
        return at + names["shared"].format(rest.removeprefix("shared."))
    return at + names[rest]


def write_family(
    folder: Path, tiny: Tiny, *, shards: int = 1, dtype: torch.dtype = torch.float32
) -> Tensors:
    """Write a checkpoint of the family; return its weights under our names, as they were stored."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = make_weights(tiny.shape)
    stored = {name: torch.from_numpy(value).to(dtype) for name, value in weights.items()}
    theirs = {}
    for name, tensor in stored.items():
        if tiny.fused and name[-1] in "qkv" and name[-2:-1] == ".":
            if name.endswith("q"):
                parts = [stored[name[:-1] + kind] for kind in "qkv"]
                theirs[name.split(".")[0].join(tiny.fused.split("{}"))] = torch.cat(parts)
            continue
        theirs[their_name(name, tiny.names)] = tensor
    write_shards(folder, theirs, shards)
    (folder / "config.json").write_text(json.dumps(tiny.config(tiny.shape)), "utf-8")
    write_tokenizer(folder)
    return {name: tensor.to(torch.float64).numpy() for name, tensor in stored.items()}


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {n: t for i, (n, t) in enumerate(tensors.items()) if i % shards == shard}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json: bytes, a few merges and added tokens."""
    space = byte_alphabet()[32]
    merged = {"he": "h e", "ll": "l l", f"{space}w": f"{space} w", "or": "o r"}
    names = [*CONTROL, TOOL_TAG]
    vocabulary = {token: i for i, token in enumerate(byte_alphabet())}
    vocabulary |= {token: 256 + len(names) + i for i, token in enumerate(merged)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level | {"use_regex": True},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": False},
        "added_tokens": [added_token(256 + i, name) for i, name in enumerate(names)],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": list(merged.values())},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    settings = {
        "bos_token": "<|endoftext|>",
        "eos_token": {"content": "<|im_end|>", "special": True},
        "mask_token": "<|mask|>",
        "chat_template": "{{ bos_token }}" + TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def added_token(index: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": name, "special": name != TOOL_TAG, **flags}


def hub_config(model_type: str, **more: Any) -> Callable[[Shape], dict[str, Any]]:
    """The fields that Llama's and Qwen's config.json have."""

    def config(shape: Shape) -> dict[str, Any]:
        return {
            "model_type": model_type,
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head,
            "max_position_embeddings": 1024,
            "rms_norm_eps": shape.epsilon,
            "rope_theta": shape.theta,
            "rope_scaling": None,
            "tie_word_embeddings": shape.tied,
            "use_sliding_window": False,
            "vocab_size": VOCAB,
            **more,
        }

    return config


def qwen_experts(shape: Shape) -> dict[str, Any]:
    return {
        **hub_config("sdar_moe")(shape),
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.expert_inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def llada_experts(shape: Shape) -> dict[str, Any]:
    dense = shape.dense_layers
    config = hub_config("llada", architectures=["LLaDAMoEModelLM"])(shape)
    del config["intermediate_size"], config["head_dim"]
    return config | {
        "dense_intermediate_size": shape.inner,
        "expert_intermediate_size": shape.expert_inner,
        "shared_expert_intermediate_size": shape.shared_inner or None,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_layer_freq": [0] * dense + [1] * (shape.layers - dense),
        "moe_router_score_function": "softmax",
        "norm_topk_prob": None,
        "partial_rotary_factor": 1,
        "qk_layernorm": True,
    }


def llada2_experts(shape: Shape) -> dict[str, Any]:
    return {
        **hub_config("llada2_moe", architectures=["LLaDA2MoeModelLM"])(shape),
        "first_k_dense_replace": shape.dense_layers,
        "moe_intermediate_size": shape.expert_inner,
        "n_group": shape.groups,
        "norm_head": False,
        "norm_topk_prob": True,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "num_shared_experts": 1,
        "pad_token_id": 256,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": shape.scale,
        "score_function": "sigmoid",
        "topk_group": shape.best_groups,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_bias": False,
    }


def ministral_config(shape: Shape) -> dict[str, Any]:
    rotary = {
        "rope_type": "yarn",
        "type": "yarn",
        "rope_theta": shape.theta,
        "factor": shape.yarn,
        "original_max_position_embeddings": shape.original,
        "beta_fast": shape.turns[0],
        "beta_slow": shape.turns[1],
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": shape.growth,
    }
    extra = {"dlm_paradigm": "bidirectional", "sliding_window": None, "mask_token_id": MASK}
    config = hub_config("nemotron_labs_diffusion", rope_parameters=rotary, **extra)(shape)
    del config["rope_theta"], config["rope_scaling"], config["use_sliding_window"]
    return config


def olmo_config(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "activation_type": "silu",
        "alibi": False,
        "block_type": "llama",
        "d_model": shape.hidden,
        "embedding_size": VOCAB,
        "eos_token_id": 256,
        "include_bias": False,
        "include_qkv_bias": False,
        "layer_norm_type": "rms",
        "mask_token_id": MASK,
        "max_sequence_length": 1024,
        "mlp_hidden_size": shape.inner,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "n_layers": shape.layers,
        "rms_norm_eps": shape.epsilon,
        "rope": True,
        "rope_theta": shape.theta,
        "vocab_size": VOCAB - 3,
        "weight_tying": False,
    }


DENSE = Shape()
QWEN3 = replace(DENSE, qk_norm=True)
QWEN2 = replace(DENSE, qkv_bias=True, head=12, rotated=12)
# Llada's heads fill the hidden size, and every head has its own keys.
LLADA = replace(DENSE, heads=4, kv_heads=4, head=12, rotated=12, theta=500_000.0, epsilon=1e-5)

TINY_FAMILIES: dict[str, Tiny] = {
    "llama": Tiny(replace(DENSE, tied=True, theta=10_000.0), hub_config("llama")),
    "qwen2": Tiny(QWEN2, hub_config("qwen2", head_dim=None)),
    "qwen3": Tiny(replace(QWEN3, tied=True), hub_config("qwen3")),
    "sdar": Tiny(QWEN3, hub_config("sdar", block_size=4, mask_token_id=MASK)),
    "i-dlm": Tiny(
        QWEN3, hub_config("sdar", use_regular_causal=True, block_size=3, mask_token_id=MASK)
    ),
    "nemotron_labs_diffusion": Tiny(
        replace(DENSE, theta=1000.0, yarn=4.0, growth=0.4, epsilon=1e-5),
        ministral_config,
        {
            "embedding": "encoder.embed_tokens.weight",
            "norm": "encoder.norm.weight",
            "head": "diffusion_head.weight",
            "layer": "encoder.layers.{}.",
        },
    ),
    "sdar_moe": Tiny(replace(QWEN3, experts=6, renormalise=True), qwen_experts),
    "Fast_dLLM_Qwen": Tiny(QWEN2, hub_config("Fast_dLLM_Qwen", head_dim=None, bd_size=16)),
    "a2d-qwen2": Tiny(replace(QWEN2, tied=True), hub_config("a2d-qwen2", head_dim=None)),
    "a2d-qwen3": Tiny(replace(QWEN3, tied=True), hub_config("a2d-qwen3")),
    "Dream": Tiny(QWEN2, hub_config("Dream", head_dim=None, mask_token_id=MASK)),
    "llada": Tiny(
        LLADA,
        olmo_config,
        {
            "embedding": "model.transformer.wte.weight",
            "norm": "model.transformer.ln_f.weight",
            "head": "model.transformer.ff_out.weight",
            "layer": "model.transformer.blocks.{}.",
            "norm1": "attn_norm.weight",
            "norm2": "ff_norm.weight",
            "q": "q_proj.weight",
            "k": "k_proj.weight",
            "v": "v_proj.weight",
            "o": "attn_out.weight",
            "gate": "ff_proj.weight",
            "up": "up_proj.weight",
            "down": "ff_out.weight",
        },
    ),
    "lladamoe": Tiny(
        replace(LLADA, qk_norm=True, experts=6, chosen=3, epsilon=1e-5), llada_experts
    ),
    "lladamoe-shared": Tiny(
        replace(LLADA, qk_norm=True, experts=6, shared_inner=20, dense_layers=1),
        llada_experts,
        {"shared": "shared_expert.{}_proj.weight"},
    ),
    "llada2_moe": Tiny(
        replace(
            QWEN3,
            layers=3,
            theta=600_000.0,
            rotated=8,
            experts=16,
            chosen=4,
            expert_inner=20,
            shared_inner=20,
            dense_layers=1,
            sigmoid=True,
            groups=4,
            best_groups=2,
            renormalise=True,
            scale=2.5,
        ),
        llada2_experts,
        {
            "embedding": "model.word_embeddings.weight",
            "o": "attention.dense.weight",
            "qnorm": "attention.query_layernorm.weight",
            "knorm": "attention.key_layernorm.weight",
        },
        fused="model.layers.{}.attention.query_key_value.weight",
    ),
}
