"""Attention of packed rows of several sequences over their paged caches.

In: queries of all sequences one behind the other, pages of keys and values, which pages a
sequence owns, and for each row how many positions of its sequence it sees. Out: the attended
values. The prefix length says clean causal text, bidirectional blocks and verified drafts alike,
so knows nothing of masks, tokens, layers or who owns a page.

A row's bits do not depend on the other rows. Reference: each row is computed alone. Triton: one
program walks a row's keys from position 0 in tiles of a fixed size and adds them up in that order,
tile sizes never depend on the launch, and the tiles that only longer-sighted neighbours need
multiply the row's sums by exactly 1 and add exactly 0.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from kernels.launch import (
    attention_tiles,
    check_launch,
    compute_capability,
    jit,
    on_device,
    runs_on_triton,
    tl,
)

HEAD_SIZES = (16, 32, 64, 128)


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    block_table: Tensor,
    row_starts: Tensor,
    visible: Tensor,
) -> Tensor:
    """Grouped-query attention in which each row sees a prefix of its sequence's positions.

    query: [rows, num_heads, head_size], float32, float16 or bfloat16, rotary positions applied.
    key_pages, value_pages: [num_pages, page_size, num_kv_heads, head_size], same type; positions
    that no row sees may hold anything, even NaN, all others must be finite.
    block_table: int32 [sequences, max_pages]; position p of sequence s is in page
    block_table[s, p // page_size]; entries behind what rows see may be anything.
    row_starts: int32 [sequences + 1], rows row_starts[s] to row_starts[s + 1] - 1 belong to
    sequence s, which may have none; the first is 0, the last is rows. visible: int32 [rows], the
    row sees positions [0, visible); 0 gives zeros. Sums in float32.
    Returns [rows, num_heads, head_size] of the query's type. On a GPU by Triton, which takes the
    head sizes of HEAD_SIZES (FlashAttention-2, arXiv 2307.08691, algorithm 1).
    """
    chosen = paged_attention_triton if runs_on_triton(query) else paged_attention_reference
    return chosen(
        query,
        key_pages,
        value_pages,
        block_table=block_table,
        row_starts=row_starts,
        visible=visible,
    )


def paged_attention_reference(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    block_table: Tensor,
    row_starts: Tensor,
    visible: Tensor,
) -> Tensor:
    """`paged_attention` in plain torch: gather the pages, then a softmax for each row alone."""
    out = torch.empty_like(query)
    lengths = visible.tolist()
    for pages, (start, end) in zip(block_table, pairwise(row_starts.tolist()), strict=True):
        used = pages[: -(-max(lengths[start:end], default=0) // key_pages.shape[1])]
        keys, values = (p[used].flatten(0, 1).float() for p in (key_pages, value_pages))
        for row in range(start, end):
            out[row] = _attend(query[row].float(), keys[: lengths[row]], values[: lengths[row]])
    return out


def _attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One row: query [num_heads, size] over keys and values [positions, num_kv_heads, size]."""
    num_heads, size = query.shape
    grouped = query.view(keys.shape[1], -1, size)
    scores = grouped @ keys.permute(1, 2, 0) / math.sqrt(size)
    return (scores.softmax(dim=2) @ values.transpose(0, 1)).view(num_heads, size)


def paged_attention_triton(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    block_table: Tensor,
    row_starts: Tensor,
    visible: Tensor,
) -> Tensor:
    """`paged_attention` in one Triton launch, without waiting for the GPU."""
    check_launch(query, key_pages, value_pages, block_table, row_starts, visible)
    rows, num_heads, head_size = query.shape
    page_size, num_kv_heads = key_pages.shape[1:3]
    assert head_size in HEAD_SIZES, f"head size {head_size} is none of {HEAD_SIZES}"
    assert query.dtype == key_pages.dtype == value_pages.dtype, "one type for all three"
    assert query.stride(1) == head_size, "a row's heads lie side by side"
    assert key_pages.stride() == value_pages.stride(), "one layout for keys and values"
    assert key_pages[0].is_contiguous(), "a page lies in one piece"
    assert block_table.dtype == row_starts.dtype == visible.dtype == torch.int32, "int32 indices"
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    if not rows:
        return out
    group = num_heads // num_kv_heads
    capability = compute_capability(query.device)
    tiles = attention_tiles(head_size, query.element_size(), group, capability)
    num_sequences = len(block_table)
    grid = (rows // (tiles.block_m // group) + num_sequences, num_kv_heads)
    with on_device(query):
        _attention_kernel[grid](
            *(query, key_pages, value_pages, block_table, row_starts, visible, out),
            *(num_sequences, math.log2(math.e) / math.sqrt(head_size)),
            *(query.stride(0), key_pages.stride(0), block_table.stride(0)),
            group=group,
            head_size=head_size,
            page_size=page_size,
            block_m=tiles.block_m,
            block_n=tiles.block_n,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )
    return out


@jit
def _rows_of_tile(
    tile: tl.tensor,
    row_starts: tl.tensor,
    num_sequences: tl.tensor,
    rows_per_tile: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Which rows a program takes: their sequence, the first one, and the sequence's end.

    Sequence s owns the tiles from row_starts[s] // rows_per_tile + s on: at least as many as its
    rows need, at most one more, and found by halving, without a sum over those before.
    """
    low = tile * 0
    high = low + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        is_before = tl.load(row_starts + middle) // rows_per_tile + middle <= tile
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    start = tl.load(row_starts + low)
    first = start + (tile - start // rows_per_tile - low) * rows_per_tile
    return low, first, tl.load(row_starts + low + 1)


@jit
def _attend_prefix(  # noqa: PLR0917 - Triton's functions take no keyword-only arguments
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    pages: tl.tensor,
    seen: tl.tensor,
    scale: tl.tensor,
    page_stride: tl.tensor,
    position_stride: tl.tensor,
    page_size: tl.constexpr,
    block_n: tl.constexpr,
) -> tl.tensor:
    """Each lane of queries [lanes, size] over its first `seen` positions, in float32.

    keys, values: one head's first element. pages: the sequence's line of the block table.
    scale: log2(e) / sqrt(size), as the softmax is taken to base 2.
    """
    channel = tl.arange(0, queries.shape[1])[None, :]
    best = tl.full([queries.shape[0]], -1e38, tl.float32)
    total = tl.zeros([queries.shape[0]], tl.float32)
    attended = tl.zeros(queries.shape, tl.float32)
    num_keys = tl.max(seen)
    for first in range(0, num_keys, block_n):
        position = first + tl.arange(0, block_n)
        exists = position < num_keys
        page = tl.load(pages + position // page_size, mask=exists, other=0).to(tl.int64)
        at = page * page_stride + position % page_size * position_stride
        key = tl.load(keys + at[:, None] + channel, mask=exists[:, None], other=0.0)
        value = tl.load(values + at[:, None] + channel, mask=exists[:, None], other=0.0)
        # "ieee": the default rounds float32 operands to 10 bits.
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(position[None, :] < seen[:, None], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new_best[:, None])
        kept = tl.exp2(best - new_best)
        total = total * kept + tl.sum(weights, 1)
        weighted = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        attended = attended * kept[:, None] + weighted
        best = new_best
    # A row that sees nothing has total 0.
    return attended / tl.where(total > 0, total, 1.0)[:, None]


@jit
def _attention_kernel(  # noqa: PLR0917 - Triton binds pointers and strides by position
    query: tl.tensor,
    key_pages: tl.tensor,
    value_pages: tl.tensor,
    block_table: tl.tensor,
    row_starts: tl.tensor,
    visible: tl.tensor,
    out: tl.tensor,
    num_sequences: tl.tensor,
    scale: tl.tensor,
    row_stride: tl.tensor,
    page_stride: tl.tensor,
    table_stride: tl.tensor,
    group: tl.constexpr,
    head_size: tl.constexpr,
    page_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
) -> None:
    """One program: one key head and block_m // group rows of one sequence.

    Lane i of the queries is row i // group under query head i % group of the key head's group.
    """
    rows: tl.constexpr = block_m // group
    sequence, first, end = _rows_of_tile(tl.program_id(0), row_starts, num_sequences, rows)
    if first >= end:
        return
    lane = tl.arange(0, block_m)
    row = first + lane // group
    is_row = (lane < rows * group) & (row < end)
    seen = tl.load(visible + row, mask=is_row, other=0)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    channel = tl.arange(0, head_size) + ((kv_head * group + lane % group) * head_size)[:, None]
    row_at = row.to(tl.int64)[:, None]
    queries = tl.load(query + row_at * row_stride + channel, mask=is_row[:, None], other=0.0)
    attended = _attend_prefix(
        queries,
        key_pages + kv_head * head_size,
        value_pages + kv_head * head_size,
        block_table + sequence.to(tl.int64) * table_stride,
        seen,
        scale,
        page_stride,
        num_kv_heads * head_size,
        page_size,
        block_n,
    )
    out += row_at * (num_kv_heads * group * head_size) + channel
    tl.store(out, attended.to(query.dtype.element_ty), mask=is_row[:, None])
