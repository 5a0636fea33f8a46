"""Random logits, and what they reveal as a float64 loop over single numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor


class Logits(NamedTuple):
    """The arguments of `reveal`."""

    logits: Tensor
    forbidden_id: int


@st.composite
def logit_cases(
    draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16)
) -> Logits:
    """Flat and sharp rows around any level, with equal logits and with tokens not allowed."""
    rows, vocab = draw(st.integers(1, 4)), draw(st.sampled_from([2, 9, 100, 4096, 4097, 10_001]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    spread, level = draw(st.sampled_from([0.0, 1.0, 12.0])), draw(st.sampled_from([-80, 0, 300]))
    logits = torch.randn(rows, vocab, generator=g) * spread + level
    if draw(st.booleans()):
        logits = logits.round()
    forbidden_id = draw(st.integers(0, vocab - 1))
    if draw(st.booleans()):
        hidden = torch.rand(rows, vocab, generator=g) < 0.9
        hidden[:, (forbidden_id + 1) % vocab] = False
        logits.masked_fill_(hidden, -torch.inf)
    return Logits(logits.to(draw(st.sampled_from(dtypes))), forbidden_id)


def revealed_by_hand(case: Logits) -> list[tuple[int, float, float]]:
    """(id, probability, entropy) of each row, from the definitions."""
    out = []
    for row in case.logits.double().tolist():
        allowed = [(x, token) for token, x in enumerate(row) if token != case.forbidden_id]
        best, best_token = max(allowed, key=lambda pair: (pair[0], -pair[1]))
        total = math.fsum(math.exp(x - best) for x, _ in allowed)
        shares = [math.exp(x - best) / total for x, _ in allowed]
        entropy = -math.fsum(p * math.log(p) for p in shares if p > 0)
        out.append((best_token, 1 / total, entropy))
    return out
