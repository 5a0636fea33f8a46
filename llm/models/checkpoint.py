"""What a checkpoint offers, whatever file format it comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llm.models.spec import DrafterConfig, TransformerConfig


class CheckpointError(ValueError):
    """A model file cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What a byte-level BPE tokenizer is made of: tokens by id, merges in order of rank.

    special_ids: control tokens, which user text can never produce.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    special_ids: frozenset[int]
    eos_id: int
    chat_template: str


class Checkpoint(Protocol):
    """A backbone's weights in float32 with their shape, tokenizer and chat template."""

    @property
    def config(self) -> TransformerConfig:
        """Shape of the backbone."""

    @property
    def tokenizer(self) -> TokenizerData:
        """Vocabulary and chat template."""

    @property
    def drafter(self) -> DrafterConfig | None:
        """Shape of the drafter that comes with it, if one does."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The weight with the Hugging Face name `name`, rows first, free to be written.

        Raises CheckpointError with the name and both shapes where it does not fit `shape`.
        """
