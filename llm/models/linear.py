"""Linear layers in 8-bit integers whose result for a row never depends on the other rows.

Weights have one scale per output channel, activations one per row; the products are summed in
int32, which is exact in any order. That is what makes verified drafting exact: a token computed
among drafts and masks gets, bit for bit, the values that it would get alone.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

ACTIVATION_LIMIT = 127


class Linear(Protocol):
    """A weight [out, in], used as a linear layer or as an embedding table."""

    def __call__(self, x: Tensor) -> Tensor:
        """x: float32 [rows, in]. Returns float32 [rows, out]."""

    def rows(self, index: Tensor) -> Tensor:
        """The weight's rows `index` (int64 [n]) as float32 [n, in]."""


class FloatLinear:
    """`y = x @ weight.T` in float32: what the others are measured against."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """x: float32 [rows, in]. Returns float32 [rows, out]."""
        return x @ self.weight.t()

    def rows(self, index: Tensor) -> Tensor:
        """The weight's rows `index` (int64 [n]) as float32 [n, in]."""
        return self.weight[index]


class Int8Linear:
    """`y = x @ weight.T` with int8 operands.

    weight: float32 [out, in]. Kept as int8 [out, in] with float32 scales [out].
    """

    def __init__(self, weight: Tensor) -> None:
        limit = weight_limit()
        scale = weight.abs().amax(dim=1).clamp_min(1e-12) / limit
        self.weight = (weight / scale[:, None]).round_().to(torch.int8).contiguous()
        self.scale = scale
        self._transposed = self.weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """x: float32 [rows, in]. Returns float32 [rows, out]."""
        integers, row_scale = quantize_rows(x)
        # torch.mm on int8 would wrap around in 8 bits; _int_mm sums in 32.
        sums = torch._int_mm(integers, self._transposed)
        return sums.to(torch.float32).mul_(row_scale).mul_(self.scale)

    def rows(self, index: Tensor) -> Tensor:
        """The weight's rows `index` (int64 [n]) as float32 [n, in]: an embedding lookup."""
        return self.weight[index].to(torch.float32).mul_(self.scale[index, None])


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x: float32 [rows, n]. Returns int8 [rows, n] and the scale of each row, [rows, 1]."""
    scale = x.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12).div_(ACTIVATION_LIMIT)
    return (x / scale).round_().to(torch.int8), scale


@cache
def weight_limit() -> int:
    """Largest weight magnitude with which this machine's int8 products are exact: 127 or 63.

    AVX2 without VNNI adds pairs of 8-bit products in saturating 16 bits; with 7-bit weights
    the pairs fit.
    """
    extreme = torch.full((8, 64), 127, dtype=torch.int8)
    signs = torch.where(torch.arange(64) % 2 == 0, 1, -1).to(torch.int8)
    for left, right in ((extreme, extreme), (extreme, -extreme), (extreme * signs, extreme)):
        exact = left.to(torch.int64) @ right.to(torch.int64).t()
        if not torch.equal(torch._int_mm(left, right.t()).to(torch.int64), exact):
            return 63
    return 127
