"""What differs between diffusion LMs, said in one frozen object each; the engine knows no names.

`TransformerConfig` holds the shape of a dense backbone, `DiffusionSpec` how it decodes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of a Llama-like backbone: RMSNorm, rotary positions, grouped queries, SwiGLU."""

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

    @property
    def kv_size(self) -> int:
        """Width of one position's keys, and of its values."""
        return self.num_kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class DiffusionSpec:
    """How a model decodes.

    mask_id: the token that stands where nothing is revealed yet; never leaves the engine.
    eos_ids: tokens that end the text. logit_shift: 1 where the logits of a position predict the
    *next* one (a clean token predicts its successor, a mask the token after the one it hides),
    0 where they predict the position itself. drafts_verified: clean text is causal and its KV
    final; masks behind it draft, and the next forward verifies (the only kind so far).
    """

    mask_id: int
    eos_ids: frozenset[int]
    logit_shift: int = 1
    drafts_verified: bool = True
