"""Attention of a block of new positions over one sequence's cache.

In: queries, the cache's keys and values, and for each query how many keys it may see. A prefix
length says every mask that block refinement needs: causal clean text sees up to itself, the masks
of a block see the whole block. Out: the attended values. Knows nothing of layers or tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

ROWS_PER_TILE = 8
KEYS_PER_PAGE = 512


def visibility_bias(visible: Tensor, group: int) -> Tensor:
    """The mask of one forward, the same for all its layers.

    visible: int64 [rows], row t sees the keys [0, visible[t]), at least one. group: query heads
    for each key head. Returns float32 [tiles, 1, ROWS_PER_TILE x group, keys], 0 where a row sees
    the key, else -inf; keys are whole pages.
    """
    visible = F.pad(visible, (0, -len(visible) % ROWS_PER_TILE), value=1)
    num_keys = int(visible.max())
    num_keys += -num_keys % KEYS_PER_PAGE
    hidden = torch.arange(num_keys) >= visible.view(-1, ROWS_PER_TILE, 1, 1)
    bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    return bias.expand(-1, -1, group, -1).reshape(-1, 1, ROWS_PER_TILE * group, num_keys)


def block_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Grouped-query attention in which each row sees a prefix of the keys.

    query: float32 [rows, num_heads, head_size], rotary positions applied.
    key, value: float32 [num_kv_heads, capacity, head_size], capacity a multiple of KEYS_PER_PAGE;
    entries that no row sees must be finite. bias: from `visibility_bias` for these rows.
    Returns float32 [rows, num_heads, head_size]. A row's result does not depend on the other
    rows: rows go in tiles of ROWS_PER_TILE and keys in pages of KEYS_PER_PAGE, the size in which
    torch walks through them, so every matrix product has one shape. With free shapes the BLAS
    sums in other orders and the last bit differs (98 rows of 100 measured), which the int8
    rounding behind it then makes visible.
    """
    assert key.shape[1] % KEYS_PER_PAGE == 0, "the cache is made of whole pages"
    rows, num_heads, head_size = query.shape
    num_kv_heads = key.shape[0]
    num_tiles, num_keys = bias.shape[0], bias.shape[3]
    padding = num_tiles * ROWS_PER_TILE - rows
    tiles = F.pad(query, (0, 0, 0, 0, 0, padding)).view(
        num_tiles, ROWS_PER_TILE, num_kv_heads, -1, head_size
    )
    attended = F.scaled_dot_product_attention(
        tiles.transpose(1, 2).reshape(num_tiles, num_kv_heads, -1, head_size),
        key[:, :num_keys].expand(num_tiles, -1, -1, -1),
        value[:, :num_keys].expand(num_tiles, -1, -1, -1),
        attn_mask=bias,
    )
    attended = attended.view(num_tiles, num_kv_heads, ROWS_PER_TILE, -1, head_size)
    return attended.transpose(1, 2).reshape(-1, num_heads, head_size)[:rows]
