"""Families by specification: one table says what sets each open model family apart.

The table is the only place that knows a model's name. What its rows say is read by the same code
for all of them, so a new family is a new row. In: the values of config.json. Out: the backbone's
shape; the rest of a row is data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llm.models.checkpoint import CheckpointError
from llm.models.config_fields import Fields, read_rotary
from llm.models.spec import Attention, MoeConfig, TransformerConfig


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a model family apart.

    attention, logit_shift, mask_shift, masks_causal, block_length, sub_block_length: as in
    DiffusionSpec. mask_tokens: names that the mask token goes by, for folders that do not say which
    it is; mask_id: its id where not even the name is there. eos_tokens: names of tokens that end an
    answer, besides those that the folder says. qkv_bias, qk_norm, rotary_factor: as in
    TransformerConfig. fused_qkv: query, key and value are one tensor, which goes by each of their
    names. tensor_names, config_names: parts of names, ours to theirs. config: the only values that
    the folder's config may have, since others mean equations that are not here. template_variables:
    what the chat template finds set. experts: reads the shape of the mixture of experts.
    """

    attention: Attention
    logit_shift: int
    mask_shift: int = 1
    masks_causal: bool = False
    block_length: int = 32
    sub_block_length: int = 0
    mask_tokens: tuple[str, ...] = ()
    mask_id: int | None = None
    eos_tokens: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")
    qkv_bias: bool = False
    qk_norm: bool = False
    rotary_factor: float = 1.0
    fused_qkv: bool = False
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    template_variables: Mapping[str, bool] = field(default_factory=dict)
    experts: Callable[[Fields], MoeConfig] | None = None

    def shape(self, fields: Fields, *, tied_head: bool) -> TransformerConfig:
        """The backbone's shape. tied_head: what to take where the config does not say.

        Raises CheckpointError for a value that is missing or means other equations.
        """
        for name, value in {
            "hidden_act": "silu",
            "use_sliding_window": False,
            **self.config,
        }.items():
            fields.require(name, value)
        num_heads = fields.integer("num_attention_heads")
        hidden_size = fields.integer("hidden_size")
        head_size = fields.integer("head_dim", hidden_size // num_heads)
        said = fields.get("tie_word_embeddings")
        theta, factor, scaling = read_rotary(fields, self.rotary_factor)
        moe = self.experts(fields) if self.experts else None
        return TransformerConfig(
            num_layers=fields.integer("num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size", 0 if moe else None),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_size=head_size,
            vocab_size=fields.integer("vocab_size"),
            context_length=fields.integer("max_position_embeddings"),
            rope_theta=theta,
            norm_epsilon=fields.number("rms_norm_eps"),
            rotary_size=None if factor == 1 else int(head_size * factor),
            rotary_scaling=scaling,
            tied_head=tied_head if said is None else bool(said),
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            moe=moe,
        )


def _qwen3_experts(fields: Fields) -> MoeConfig:
    fields.require("decoder_sparse_step", 1)
    fields.require("mlp_only_layers", [])
    return MoeConfig(
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        expert_size=fields.integer("moe_intermediate_size"),
        renormalise=bool(fields.get("norm_topk_prob")),
    )


def _llada_experts(fields: Fields) -> MoeConfig:
    layers = fields.get("moe_layer_freq") or [1]
    first = layers.index(1) if 1 in layers else len(layers)
    fields.require("moe_layer_freq", [0] * first + [1] * (len(layers) - first))
    # Its code ignores norm_topk_prob: the softmax scores of the chosen experts are the weights.
    return MoeConfig(
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        expert_size=fields.integer("expert_intermediate_size"),
        shared_size=fields.integer("shared_expert_intermediate_size", 0),
        first_layer=first,
    )


def _llada2_experts(fields: Fields) -> MoeConfig:
    fields.require("score_function", "sigmoid")
    expert_size = fields.integer("moe_intermediate_size")
    return MoeConfig(
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        expert_size=expert_size,
        shared_size=fields.integer("num_shared_experts", 0) * expert_size,
        first_layer=fields.integer("first_k_dense_replace", 0),
        score="sigmoid",
        selection_bias=True,
        num_groups=fields.integer("n_group", 1),
        groups_per_token=fields.integer("topk_group", 1),
        renormalise=True,
        scale=fields.number("routed_scaling_factor", 1.0),
    )


_NO_BIAS = {"attention_bias": False, "mlp_bias": False}
_NOT_THINKING = {"enable_thinking": False}
_SPARE = ("<|fim_pad|>", "<empty_output>", "<|reserved_special_token_0|>")
"""Tokens that chats never hold; they stand for a mask where a model has none of its own."""

_SDAR = Family(
    Attention.BLOCK_CAUSAL,
    logit_shift=0,
    block_length=4,
    mask_tokens=("<|MASK|>",),
    mask_id=151669,
    qk_norm=True,
    config=_NO_BIAS,
    template_variables=_NOT_THINKING,
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        Attention.CAUSAL_VERIFIED,
        logit_shift=1,
        mask_tokens=_SPARE,
        eos_tokens=("<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
        config=_NO_BIAS,
    ),
    "qwen2": Family(Attention.CAUSAL_VERIFIED, logit_shift=1, mask_tokens=_SPARE, qkv_bias=True),
    "qwen3": Family(
        Attention.CAUSAL_VERIFIED,
        logit_shift=1,
        mask_tokens=_SPARE,
        qk_norm=True,
        config=_NO_BIAS,
        template_variables=_NOT_THINKING,
    ),
    "sdar": _SDAR,
    "sdar_moe": replace(_SDAR, experts=_qwen3_experts),
    "i-dlm": replace(_SDAR, attention=Attention.CAUSAL_VERIFIED, logit_shift=1, masks_causal=True),
    "nemotron_labs_diffusion": Family(
        Attention.CAUSAL_VERIFIED,
        logit_shift=1,
        mask_shift=0,
        mask_id=100,
        eos_tokens=("</s>",),
        tensor_names={
            "model.embed_tokens": "encoder.embed_tokens",
            "model.layers": "encoder.layers",
            "model.norm": "encoder.norm",
            "lm_head": "diffusion_head",
        },
        config={**_NO_BIAS, "sliding_window": None},
    ),
    "Fast_dLLM_Qwen": Family(
        Attention.BLOCK_CAUSAL,
        logit_shift=1,
        sub_block_length=8,
        mask_tokens=("|<MASK>|",),
        mask_id=151665,
        qkv_bias=True,
        config_names={"block_size": "bd_size"},
    ),
    "a2d-qwen2": Family(
        Attention.BLOCK_CAUSAL, logit_shift=0, mask_tokens=("<|mask|>",), qkv_bias=True
    ),
    "a2d-qwen3": Family(
        Attention.BLOCK_CAUSAL,
        logit_shift=0,
        mask_tokens=("<|mask|>",),
        qk_norm=True,
        config=_NO_BIAS,
        template_variables=_NOT_THINKING,
    ),
    "Dream": Family(
        Attention.FULL, logit_shift=1, mask_tokens=("<|mask|>",), mask_id=151666, qkv_bias=True
    ),
    "llada": Family(
        Attention.FULL,
        logit_shift=0,
        mask_tokens=("<|mdm_mask|>",),
        mask_id=126336,
        eos_tokens=("<|endoftext|>", "<|eot_id|>"),
        tensor_names={
            "model.embed_tokens": "model.transformer.wte",
            "model.norm": "model.transformer.ln_f",
            "lm_head": "model.transformer.ff_out",
            "model.layers": "model.transformer.blocks",
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "q_proj",
            "self_attn.k_proj": "k_proj",
            "self_attn.v_proj": "v_proj",
            "self_attn.o_proj": "attn_out",
            "post_attention_layernorm": "ff_norm",
            "mlp.gate_proj": "ff_proj",
            "mlp.up_proj": "up_proj",
            "mlp.down_proj": "ff_out",
        },
        config_names={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads",
            "intermediate_size": "mlp_hidden_size",
            "vocab_size": "embedding_size",
            "max_position_embeddings": "max_sequence_length",
            "tie_word_embeddings": "weight_tying",
            "hidden_act": "activation_type",
        },
        config={
            "block_type": "llama",
            "layer_norm_type": "rms",
            "rope": True,
            "alibi": False,
            "attention_layer_norm": False,
            "input_emb_norm": False,
            "scale_logits": False,
            "include_bias": False,
            "include_qkv_bias": False,
        },
    ),
    "lladamoe": Family(
        Attention.FULL,
        logit_shift=0,
        mask_tokens=("<|mask|>",),
        mask_id=156895,
        eos_tokens=("<|endoftext|>", "<|role_end|>"),
        qk_norm=True,
        tensor_names={"mlp.shared_expert": "shared_expert"},
        config_names={"intermediate_size": "dense_intermediate_size"},
        config={
            **_NO_BIAS,
            "qk_layernorm": True,
            "moe_router_score_function": "softmax",
            "moe_router_enable_expert_bias": False,
        },
        experts=_llada_experts,
    ),
    "llada2_moe": Family(
        Attention.BLOCK_CAUSAL,
        logit_shift=0,
        mask_tokens=("<|mask|>",),
        mask_id=156895,
        eos_tokens=("<|endoftext|>", "<|role_end|>"),
        qk_norm=True,
        rotary_factor=0.5,
        fused_qkv=True,
        tensor_names={
            "model.embed_tokens": "model.word_embeddings",
            "self_attn.q_proj": "attention.query_key_value",
            "self_attn.k_proj": "attention.query_key_value",
            "self_attn.v_proj": "attention.query_key_value",
            "self_attn.o_proj": "attention.dense",
            "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
            "mlp.shared_expert": "mlp.shared_experts",
        },
        config={"use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "norm_head": False},
        experts=_llada2_experts,
    ),
}
"""The known families by the `model_type` of config.json."""

_TYPE_OF_ARCHITECTURE = {"LLaDAMoEModelLM": "lladamoe"}
"""Architectures that share their `model_type` with another family."""


def find_family(config: Mapping[str, Any], folder_name: str = "") -> Family:
    """The family of a config.json. Raises CheckpointError with the known ones for another."""
    kind = str(config.get("model_type"))
    for architecture in config.get("architectures") or ():
        kind = _TYPE_OF_ARCHITECTURE.get(architecture, kind)
    # I-DLM shares SDAR's type; its own config class takes causal text for granted.
    if kind == "sdar" and config.get("use_regular_causal", "i-dlm" in folder_name.lower()):
        kind = "i-dlm"
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model_type '{kind}' is not known; known: {known}")
    return FAMILIES[kind]
