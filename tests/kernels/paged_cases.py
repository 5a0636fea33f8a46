"""Random cases of paged attention, and attention as a float64 loop over single numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor


class Case(NamedTuple):
    """The arguments of `paged_attention`."""

    query: Tensor
    key_pages: Tensor
    value_pages: Tensor
    block_table: Tensor
    row_starts: Tensor
    visible: Tensor

    def run(self, attention, **changes) -> Tensor:
        query, keys, values, *rest = self._replace(**changes)
        return attention(query, keys, values, **dict(zip(self._fields[3:], rest, strict=True)))

    def row_alone(self, sequence: int, row: int) -> Case:
        """One row of one sequence, in the same pages."""
        return self._replace(
            query=self.query[row : row + 1],
            block_table=self.block_table[sequence : sequence + 1],
            row_starts=torch.tensor([0, 1], dtype=torch.int32),
            visible=self.visible[row : row + 1],
        )

    def rows(self) -> list[tuple[int, int]]:
        """(sequence, row) of every row."""
        starts = self.row_starts.tolist()
        return [(s, row) for s in range(len(starts) - 1) for row in range(starts[s], starts[s + 1])]


class Shape(NamedTuple):
    """lengths: for each sequence how many positions each of its rows sees."""

    lengths: tuple[tuple[int, ...], ...]
    num_kv_heads: int
    group: int
    head_size: int
    page_size: int


@st.composite
def shapes(draw: st.DrawFn, max_rows: int = 6, max_visible: int = 150) -> Shape:
    rows = st.lists(st.integers(0, max_visible), max_size=max_rows).map(tuple)
    return Shape(
        lengths=tuple(draw(st.lists(rows, min_size=1, max_size=4))),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 5)),
        head_size=draw(st.sampled_from([16, 32, 64, 128])),
        page_size=draw(st.sampled_from([1, 7, 16, 64])),
    )


def make_case(shape: Shape, dtype: torch.dtype = torch.float32, seed: int = 0) -> Case:
    """Pages in random order; NaN where no row looks, and table entries behind that out of range."""
    g = torch.Generator().manual_seed(seed)
    longest = [max(rows, default=0) for rows in shape.lengths]
    num_pages = [-(-n // shape.page_size) for n in longest]
    order = torch.randperm(sum(num_pages) + 2, generator=g).int()
    size = (len(order), shape.page_size, shape.num_kv_heads, shape.head_size)
    keys = torch.full(size, torch.nan, dtype=dtype)
    values = keys.clone()
    table = torch.full((len(longest), max(num_pages) + 1), 2**30, dtype=torch.int32)
    taken = 0
    for sequence, count in enumerate(num_pages):
        table[sequence, :count] = order[taken : taken + count]
        taken += count
        for position in range(longest[sequence]):
            page = int(table[sequence, position // shape.page_size])
            for pages in (keys, values):
                numbers = torch.randn(size[2:], generator=g)
                pages[page, position % shape.page_size] = numbers.to(dtype)
    counts = torch.tensor([0, *map(len, shape.lengths)])
    rows, heads = int(counts.sum()), shape.num_kv_heads * shape.group
    # Queries as a slice of wider rows, as they come out of a joint projection.
    joint = torch.randn(rows, heads + 2, shape.head_size, generator=g).to(dtype)
    return Case(
        joint[:, :heads],
        keys,
        values,
        table,
        counts.cumsum(0).int(),
        torch.tensor([n for rows in shape.lengths for n in rows], dtype=torch.int32),
    )


def attention_by_hand(case: Case) -> Tensor:
    """Position by position and head by head in float64, in the order of the definition."""
    out = torch.zeros(case.query.shape, dtype=torch.float64)
    page_size, num_kv_heads = case.key_pages.shape[1:3]
    group = case.query.shape[1] // num_kv_heads
    for sequence, row in case.rows():
        for head in range(case.query.shape[1]):
            query = case.query[row, head].double()
            total = 0.0
            for position in range(int(case.visible[row])):
                page = int(case.block_table[sequence, position // page_size])
                place = (page, position % page_size, head // group)
                score = float(query @ case.key_pages[place].double()) / math.sqrt(len(query))
                total += math.exp(score)
                out[row, head] += math.exp(score) * case.value_pages[place].double()
            if total:
                out[row, head] /= total
    return out
