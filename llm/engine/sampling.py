"""How one request picks tokens from logits: penalties, bias, temperature, cut-offs and dice.

Pure functions of one row of logits. The order: penalties, logit bias, forbidden tokens
(`adjusted_logits`); then temperature, min-p, top-k, top-p (`distribution`), as vLLM documents for
its sampler. Bias comes after the penalties, so that ±100 forces or bans whatever was said before.

Randomness is counter-based: the number for output position i depends on the request's seed, i and
what it is for, never on how many numbers were drawn before (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"). Given a runner whose rows do not depend on the rows beside them, a
seeded request therefore gives the same text whatever else is in the batch, and with one-token
drafts (see `verify`) however its drafts fell. Not guaranteed: the same text from another machine,
another number format or another version of the model, whose logits differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from llm.types import SamplingParams, TokenLogprobs

Logits: TypeAlias = NDArray[np.floating]
Probabilities: TypeAlias = NDArray[np.float64]
TokenIds: TypeAlias = Sequence[int] | NDArray[np.int64]


class Purpose(IntEnum):
    """What a random number is for; numbers for different purposes are independent."""

    TOKEN = 0
    ACCEPT = 1
    DRAFT = 2


def adjusted_logits(
    logits: Logits,
    params: SamplingParams,
    *,
    prompt: TokenIds,
    generated: TokenIds,
    mask_id: int,
    eos_ids: Collection[int],
) -> NDArray[np.float32]:
    """A copy of one row of logits with penalties, bias and forbidden tokens worked in.

    logits: shape (vocabulary,); -inf stays -inf. prompt, generated: the tokens before the row;
    generated includes the drafts that the row takes for accepted. mask_id: never allowed.
    eos_ids: not allowed before params.min_new_tokens are generated, nor under ignore_eos.
    """
    row = np.array(logits, dtype=np.float32)
    if params.repetition_penalty != 1:
        seen = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in (prompt, generated)])
        # A token seen twice is read once and written twice with the same value: penalised once.
        scores = row[seen]
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(scores < 0, scores * penalty, scores / penalty)
    if params.presence_penalty or params.frequency_penalty:
        tokens, counts = np.unique(np.asarray(generated, dtype=np.int64), return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        row[tokens] -= penalties.astype(np.float32)
    for token, bias in params.logit_bias:
        row[token] += np.float32(bias)
    if params.ignore_eos or len(generated) < params.min_new_tokens:
        row[list(eos_ids)] = -np.inf
    row[mask_id] = -np.inf
    return row


def distribution(adjusted: Logits, params: SamplingParams) -> Probabilities:
    """What the next token is drawn from: temperature, then min-p, top-k and top-p.

    adjusted: shape (vocabulary,), at least one above -inf. Returns probabilities of that shape.
    Greedy: all on the best token. Among equals the lowest id counts as better, throughout.
    """
    best = int(np.argmax(adjusted))
    assert adjusted[best] > -np.inf, "at least one token must be allowed"
    if params.is_greedy:
        certain = np.zeros(len(adjusted))
        certain[best] = 1.0
        return certain
    weights = adjusted.astype(np.float64)
    weights -= weights[best]
    weights /= params.temperature
    np.exp(weights, out=weights)
    # Min-p and top-k may change places: each keeps tokens down to some rank. Top-k first, because
    # finding the k-th largest among 49,152 numbers takes 1 ms more where most of them are 0.
    if 0 < params.top_k < len(weights):
        _keep_largest(weights, params.top_k, _kth_largest(weights, params.top_k))
    # The best token's weight is 1, so the weights are already relative to it.
    if params.min_p > 0:
        weights[weights < params.min_p] = 0.0
    if params.top_p < 1:
        _keep_nucleus(weights, params.top_p)
    weights /= weights.sum()
    return weights


def draw(probabilities: Probabilities, uniform: float) -> int:
    """The token that a number from [0, 1) picks; never one of probability 0.

    probabilities: shape (vocabulary,), not negative, not all 0; their sum need not be 1.
    """
    assert 0 <= uniform < 1, "a uniform number lies in [0, 1)"
    cumulative = np.cumsum(probabilities)
    # side="right" skips tokens of probability 0, where the sum stands still.
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """The number in [0, 1) that belongs to an output position: a pure function (Philox 4x64).

    seed: signed 64 bits. position: 0 is the first generated token.
    """
    key = (seed % 2**64) | (int(purpose) << 64)
    bits = int(Philox(key=key, counter=position).random_raw())
    return (bits >> 11) * 2.0**-53


def top_logprobs(logits: Logits, token: int, num_best: int) -> TokenLogprobs:
    """Log-probabilities under the model itself: raw logits, no temperature, bias or penalty.

    logits: shape (vocabulary,). token: the one that was revealed. num_best: how many of the best
    to list, 0 or more; among equals the lowest id first.
    """
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    num_best = min(num_best, len(row))
    if num_best == 0:
        return TokenLogprobs(token, float(row[token]), ())
    (candidates,) = np.nonzero(row >= _kth_largest(row, num_best))
    best = candidates[np.argsort(-row[candidates], kind="stable")][:num_best]
    return TokenLogprobs(
        token, float(row[token]), tuple((int(id_), float(row[id_])) for id_ in best)
    )


def _kth_largest(values: NDArray[np.float64], k: int) -> float:
    return float(np.partition(values, len(values) - k)[len(values) - k])


def _keep_largest(weights: NDArray[np.float64], num_kept: int, smallest_kept: float) -> None:
    """Set all but the num_kept largest weights to 0; among equals the lowest ids stay."""
    kept = weights > smallest_kept
    (ties,) = np.nonzero(weights == smallest_kept)
    kept[ties[: num_kept - np.count_nonzero(kept)]] = True
    weights[~kept] = 0.0


def _keep_nucleus(weights: NDArray[np.float64], top_p: float) -> None:
    """Keep the fewest largest weights that make up the share top_p (arXiv 1904.09751)."""
    total = weights.sum()
    # All weights below this together are less than the tail, so the nucleus lies in the rest,
    # which is a few hundred tokens of 49,152 as a rule: sorting those is the cheap part.
    floor = (1 - top_p) * total / len(weights)
    candidates = np.sort(weights[weights >= floor])[::-1]
    reached = int(np.searchsorted(np.cumsum(candidates), top_p * total))
    num_kept = min(reached + 1, len(candidates))
    _keep_largest(weights, num_kept, float(candidates[num_kept - 1]))
