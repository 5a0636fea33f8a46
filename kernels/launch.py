"""What every Triton launch needs before it: the guard, the device, the checks, the tile sizes.

Triton is an extra: without it `tl` is absent, kernels stay plain functions that nobody calls, and
CPU tensors go to the torch references. Tile sizes come from plain functions of what is fixed for
a model and a GPU, never of how many rows there are: other tiles sum in another order, and a row
must give the same bits in every company. Knows nothing of what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "AttentionTiles",
    "VocabularyTiles",
    "attention_tiles",
    "check_launch",
    "compute_capability",
    "jit",
    "on_device",
    "runs_on_triton",
    "tl",
    "vocabulary_tiles",
]

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""Shared memory that one program may use, for each compute capability that has over 99 KiB
(CUDA C++ Programming Guide, technical specifications per compute capability)."""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Sizes of one attention program: block_m query lanes against block_n keys at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class VocabularyTiles:
    """Sizes of one program over the vocabulary: block_n logits at a time."""

    block_n: int
    num_warps: int


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`, or the function as it is where Triton is not installed."""
    return function if triton is None else triton.jit(function)


def runs_on_triton(tensor: Tensor) -> bool:
    """Whether the Triton kernel takes this tensor (it is on a GPU) or the torch reference.

    Raises RuntimeError for a GPU tensor where Triton is missing: the references copy lengths to
    the CPU and walk through rows, which on a GPU would be slow without a word.
    """
    if tensor.is_cuda and triton is None:
        raise RuntimeError("tensors on a GPU need Triton: pip install 'ember-voice[gpu]'")
    return tensor.is_cuda


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's GPU the current one, on which Triton launches."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def check_launch(*tensors: Tensor) -> None:
    """Asserts that a kernel may walk through these tensors.

    All on one device, neighbours of the last dimension side by side in memory. Refuses bfloat16
    under TRITON_INTERPRET=1, which multiplies its bit patterns as if they were integers.
    """
    device = tensors[0].device
    for index, tensor in enumerate(tensors):
        assert tensor.device == device, f"argument {index} is on {tensor.device}, not on {device}"
        assert tensor.stride(-1) == 1, f"the last dimension of argument {index} is not contiguous"
        assert tensor.is_cuda or tensor.dtype != torch.bfloat16, (
            "Triton's interpreter computes bfloat16 wrong: use float32 or float16"
        )


def compute_capability(device: torch.device) -> tuple[int, int]:
    """The GPU's compute capability; (8, 6), the least meant, for the interpreter."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 6)


def attention_tiles(
    head_size: int, element_bytes: int, group: int, capability: tuple[int, int]
) -> AttentionTiles:
    """Tiles for attention over keys of head_size elements of element_bytes each.

    group: query heads for each key head, which share a program. capability: from
    `compute_capability`. Halves block_n, then drops prefetch stages until queries, one tile of
    weights and all stages of keys and values fit the GPU's shared memory.
    """
    # 64 lanes is the least that Hopper's wgmma and Blackwell's tcgen05 take. float32 multiplies
    # without tensor cores and holds its operands in registers: at 64 x 32 and 4 warps 6 KB of
    # them spilled on sm_90. 64 lanes of head size 128 spilled 40 B at 4 warps on sm_80.
    lanes = 64 if element_bytes == 2 else 32
    block_m = max(lanes, 1 << (group - 1).bit_length())
    num_warps = 4 if element_bytes == 2 and block_m * head_size <= 64 * 64 else 8
    shared_bytes = SHARED_KIB.get(capability, 99) * 1024
    for num_stages in (3, 2, 1):
        for block_n in (lanes, lanes // 2):
            elements = block_m * (head_size + block_n) + 2 * num_stages * block_n * head_size
            if elements * element_bytes <= shared_bytes:
                return AttentionTiles(block_m, block_n, num_warps, num_stages)
    raise ValueError(f"no tiles of head size {head_size} fit {shared_bytes} B of shared memory")


def vocabulary_tiles() -> VocabularyTiles:
    """Tiles for a pass over one row of logits; 16 logits a thread."""
    return VocabularyTiles(block_n=4096, num_warps=8)
