"""Tile sizes fit every GPU meant, and what a kernel cannot walk through is refused."""

from __future__ import annotations

import pytest
import torch

from kernels.launch import attention_tiles, check_launch


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (9, 0), (12, 0)])
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("head_size", [16, 32, 64, 128])
@pytest.mark.parametrize("group", [1, 3, 8, 71])
def test_a_program_holds_whole_rows_in_sizes_that_triton_takes(
    capability: tuple[int, int], element_bytes: int, head_size: int, group: int
) -> None:
    tiles = attention_tiles(head_size, element_bytes, group, capability)
    assert tiles.block_m >= group
    assert tiles.block_n >= 16, "the least inner size of a float16 product"
    for size in (tiles.block_m, tiles.block_n, tiles.num_warps):
        assert size & (size - 1) == 0


def test_more_shared_memory_holds_more_stages() -> None:
    small, large = (attention_tiles(128, 2, 4, capability) for capability in ((8, 6), (9, 0)))
    assert small.block_n * small.num_stages < large.block_n * large.num_stages


def test_says_when_nothing_fits() -> None:
    with pytest.raises(ValueError, match="no tiles of head size 128"):
        attention_tiles(128, 4, 1024, (8, 6))


def test_refuses_what_a_kernel_cannot_walk_through() -> None:
    check_launch(torch.zeros(3, 4), torch.zeros(3, 8)[:, :4])
    with pytest.raises(AssertionError, match="last dimension of argument 1"):
        check_launch(torch.zeros(3, 4), torch.zeros(4, 3).T)
    with pytest.raises(AssertionError, match="argument 1 is on meta, not on cpu"):
        check_launch(torch.zeros(3, 4), torch.zeros(3, 4, device="meta"))
