"""What differs between diffusion LMs, said in one frozen object each; the engine knows no names.

`TransformerConfig` holds the shape of a dense backbone, `DiffusionSpec` how it decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from llm.models.rotary import RotaryScaling


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Shape of the mixture-of-experts layers: a router, experts, and a shared expert for all.

    first_layer: the layers before it are dense. expert_size, shared_size: inner widths; 0 = no
    shared expert. score: how router logits become scores. selection_bias: a bias for each expert
    that takes part in the choice only. num_groups, groups_per_token: experts are chosen from the
    best groups (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). renormalise: the chosen scores
    are made to sum to 1. scale: then multiplies them.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int = 0
    first_layer: int = 0
    score: Literal["sigmoid", "softmax"] = "softmax"
    selection_bias: bool = False
    num_groups: int = 1
    groups_per_token: int = 1
    renormalise: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of a Llama-like backbone: RMSNorm, rotary positions, grouped queries, SwiGLU.

    rotary_size: how many leading values of a head rotate, None = all. rotary_pairs: neighbours
    rotate against each other, else the two halves. rotary_scaling: for contexts beyond the first
    training's. tied_head: the embedding is also the head.
    qkv_bias: queries, keys and values have a bias. qk_norm: each head's queries and keys are
    normalised before they rotate. moe: None = every layer is dense.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    rope_theta: float
    norm_epsilon: float
    rotary_size: int | None = None
    rotary_pairs: bool = False
    rotary_scaling: RotaryScaling | None = None
    tied_head: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    moe: MoeConfig | None = None

    @property
    def kv_size(self) -> int:
        """Width of one position's keys, and of its values."""
        return self.num_kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A shallow model that drafts for a verified one, from what that one makes of the text.

    num_layers: of the backbone's shape. depths: after how many of the backbone's layers it reads,
    the last being all of them. num_drafts: tokens that it drafts at once. token_ids: tokens that
    it can draft; the rarer ones are left to the backbone.
    """

    num_layers: int
    depths: tuple[int, ...]
    num_drafts: int
    token_ids: tuple[int, ...]


class Attention(Enum):
    """What a row sees, and so how a sequence is refined.

    CAUSAL_VERIFIED: clean text is causal and verifies drafts. BLOCK_CAUSAL: a row sees its own
    block and those before it, the prompt included. FULL: every row sees every row.
    """

    CAUSAL_VERIFIED = "causal_verified"
    BLOCK_CAUSAL = "block_causal"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class DiffusionSpec:
    """How a model decodes.

    mask_id: the token that stands where nothing is revealed yet; never leaves the engine.
    eos_ids: tokens that end the text. logit_shift: 1 where the logits of a position predict the
    *next* one (a clean token predicts its successor, a mask the token after the one it hides),
    0 where they predict the position itself. drafts_verified: clean text is causal and its KV
    final; masks behind it draft, and the next forward verifies. attention: what a row sees.

    For verified drafts only: mask_shift is logit_shift for masks, where theirs differs;
    masks_causal: a mask sees nothing behind itself, else all masks see each other.

    For refinement in blocks only: block_length and sub_block_length, in tokens; with a
    sub-block (0 = none) only the leftmost unfinished one reveals. blocks_from_prompt_end: a block
    begins where the prompt ends and the first one may be short; else blocks begin at multiples of
    block_length and the end of the prompt shares its block with the answer. commit_forward: a
    finished block is computed once more without masks before others look at it.

    Raises ValueError for values that no model can have.
    """

    mask_id: int
    eos_ids: frozenset[int]
    logit_shift: int = 1
    drafts_verified: bool = True
    attention: Attention = Attention.CAUSAL_VERIFIED
    mask_shift: int = 1
    masks_causal: bool = False
    block_length: int = 32
    sub_block_length: int = 0
    blocks_from_prompt_end: bool = False
    commit_forward: bool = True

    def __post_init__(self) -> None:
        if self.logit_shift not in (0, 1):
            raise ValueError(f"logit_shift must be 0 or 1, not {self.logit_shift}")
        if self.mask_shift not in (0, 1):
            raise ValueError(f"mask_shift must be 0 or 1, not {self.mask_shift}")
        if self.block_length < 1:
            raise ValueError(f"block_length must be 1 or more, not {self.block_length}")
        if not 0 <= self.sub_block_length <= self.block_length:
            raise ValueError("sub_block_length must be between 0 and block_length")
        if self.mask_id in self.eos_ids:
            raise ValueError("the mask token cannot end the text")
