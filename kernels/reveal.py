"""What the head's logits say about a row: best token, how sure, how undecided.

In: logits, and one token that may not be revealed (the mask). Out: the best token's id, its
probability and the entropy over the vocabulary, in one pass over the logits. Knows nothing of
gates, drafts or grammars, nor of sampling. A row's bits do not depend on the other rows: each is
walked through alone, in an order fixed by the vocabulary's size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.launch import check_launch, jit, on_device, runs_on_triton, tl, vocabulary_tiles


class Revealed(NamedTuple):
    """ids: int32 [rows]. probability: float32 [rows], 0 to 1. entropy: float32 [rows], nats."""

    ids: Tensor
    probability: Tensor
    entropy: Tensor


def reveal(logits: Tensor, forbidden_id: int) -> Revealed:
    """Best token, its probability and the entropy of each row's softmax without one token.

    logits: float32, float16 or bfloat16 [rows, vocab], -inf where a token is not allowed; no NaN,
    and at least one finite logit a row besides the forbidden one. forbidden_id: a token counted
    as -inf, 0 to vocab - 1. Of equal logits the lowest id is best. Leaves the logits as they are.
    """
    assert 0 <= forbidden_id < logits.shape[1], f"token {forbidden_id} is not in the vocabulary"
    chosen = reveal_triton if runs_on_triton(logits) else reveal_reference
    return chosen(logits, forbidden_id)


def reveal_reference(logits: Tensor, forbidden_id: int) -> Revealed:
    """`reveal` in plain torch, a row at a time: a sum over one long row alone is cut by threads."""
    rows = [_reveal_row(row.float(), forbidden_id) for row in logits]
    ids, probability, entropy = zip(*rows, strict=True) if rows else ((), (), ())
    return Revealed(
        torch.tensor(ids, dtype=torch.int32, device=logits.device),
        torch.tensor(probability, dtype=torch.float32, device=logits.device),
        torch.tensor(entropy, dtype=torch.float32, device=logits.device),
    )


def _reveal_row(logits: Tensor, forbidden_id: int) -> tuple[int, float, float]:
    allowed = logits.clone()
    allowed[forbidden_id] = float("-inf")
    # argmax gives the first of equals.
    best = int(allowed.argmax())
    log_probabilities = allowed.log_softmax(dim=0)
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities.clamp(min=-1e4)).sum()
    return best, float(probabilities[best]), float(entropy)


def reveal_triton(logits: Tensor, forbidden_id: int) -> Revealed:
    """`reveal` in one Triton launch, a program for each row."""
    check_launch(logits)
    rows, vocab_size = logits.shape
    revealed = Revealed(
        torch.empty(rows, dtype=torch.int32, device=logits.device),
        torch.empty(rows, dtype=torch.float32, device=logits.device),
        torch.empty(rows, dtype=torch.float32, device=logits.device),
    )
    tiles = vocabulary_tiles()
    if rows:
        with on_device(logits):
            _reveal_kernel[(rows,)](
                *(logits, *revealed, vocab_size, logits.stride(0), forbidden_id),
                block_n=tiles.block_n,
                num_warps=tiles.num_warps,
            )
    return revealed


@jit
def _reveal_kernel(  # noqa: PLR0917 - Triton binds pointers and strides by position
    logits: tl.tensor,
    ids: tl.tensor,
    probability: tl.tensor,
    entropy: tl.tensor,
    vocab_size: tl.tensor,
    row_stride: tl.tensor,
    forbidden_id: tl.tensor,
    block_n: tl.constexpr,
) -> None:
    """Online softmax (arXiv 1805.02867, algorithm 3) that carries the entropy's sum along.

    With gap = x - best: total = sum of exp(gap), moment = sum of exp(gap) gap, so the entropy is
    log(total) - moment / total. Gaps and not logits, as the difference of two large numbers would
    lose the small one. A better best shifts all gaps: the moment by total times the shift.
    """
    row = tl.program_id(0).to(tl.int64)
    best = -1e38
    best_id = 0
    total = 0.0
    moment = 0.0
    for first in range(0, vocab_size, block_n):
        token = first + tl.arange(0, block_n)
        allowed = (token < vocab_size) & (token != forbidden_id)
        x = tl.load(logits + row * row_stride + token, mask=allowed, other=float("-inf"))
        x = x.to(tl.float32)
        tile_best = tl.max(x)
        tile_id = tl.min(tl.where(x == tile_best, token, vocab_size))
        best_id = tl.where(tile_best > best, tile_id, best_id)
        new_best = tl.maximum(best, tile_best)
        shift = best - new_best
        # A forbidden token's gap would be -inf, and 0 times that is NaN; exp(-1e4) is 0 as well.
        gap = tl.maximum(x - new_best, -1e4)
        weight = tl.exp(gap)
        moment = (moment + total * shift) * tl.exp(shift)
        moment += tl.sum(weight * gap)
        total = total * tl.exp(shift) + tl.sum(weight)
        best = new_best
    tl.store(ids + row, best_id)
    tl.store(probability + row, 1.0 / total)
    tl.store(entropy + row, tl.log(total) - moment / total)
