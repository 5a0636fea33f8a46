"""Published decoding algorithms, written once more as slowly and plainly as they can be.

No cache (but where a cache is what the algorithm is about), no arrays, no code of the engine: each
forward computes the whole text. `logits(tokens, mask)` is the model: tokens a list of n ids, mask
bool [n, n], true where a row sees a column; it returns [n, vocab].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Seen = tuple[int, float, float, int]
"""Position, probability of the best token, entropy, best token."""

Pick = Callable[[list[Seen]], set[int]]
"""What a policy reveals of the masks, given in order of position; called step after step."""

MakePick = Callable[[int], Pick]
"""A policy for a block with so many masks."""

State = dict[int, int]
"""Position to token, masks left out."""


def best_of(logits: Any, mask_id: int) -> tuple[float, float, int]:
    scores = {t: float(x) for t, x in enumerate(logits) if t != mask_id}
    top = max(scores.values())
    total = sum(math.exp(x - top) for x in scores.values())
    p = {t: math.exp(x - top) / total for t, x in scores.items()}
    token = max(p, key=lambda t: (p[t], -t))
    return p[token], -sum(q * math.log(q) for q in p.values()), token


def best_first(masks: list[Seen]) -> list[Seen]:
    return sorted(masks, key=lambda seen: (-seen[1], seen[0]))


def threshold(limit: float) -> MakePick:
    def pick(masks: list[Seen]) -> set[int]:
        return {at for at, p, _, _ in masks if p >= limit} or {best_first(masks)[0][0]}

    return lambda num_masks: pick


def factor(f: float) -> MakePick:
    def pick(masks: list[Seen]) -> set[int]:
        order = best_first(masks)
        count = 1
        for n in range(1, len(order) + 1):
            if (n + 1) * (1 - order[n - 1][1]) < f:
                count = n
        return {at for at, *_ in order[:count]}

    return lambda num_masks: pick


def entropy_bound(gamma: float) -> MakePick:
    def pick(masks: list[Seen]) -> set[int]:
        chosen: set[int] = set()
        total = 0.0
        for at, _, entropy, _ in sorted(masks, key=lambda seen: (seen[2], seen[0])):
            total += entropy
            if chosen and total > gamma:
                break
            chosen.add(at)
        return chosen

    return lambda num_masks: pick


def credit(limit: float, weight: float, decay: float, sharpness: float) -> MakePick:
    def make(num_masks: int) -> Pick:
        owned: dict[int, tuple[int, float]] = {}

        def pick(masks: list[Seen]) -> set[int]:
            raised = []
            for at, p, entropy, token in masks:
                holder, amount = owned.get(at, (token, 0.0))
                amount = (amount * decay if holder == token else 0.0) + p**sharpness
                owned[at] = (token, amount)
                odds = p * (1 + amount) ** weight
                raised.append((at, odds / (odds + 1 - p), entropy, token))
            return threshold(limit)(0)(raised)

        return pick

    return make


def hierarchical(high: float, low: float) -> MakePick:
    def pick(masks: list[Seen]) -> set[int]:
        runs: list[list[Seen]] = []
        for seen in masks:
            if runs and runs[-1][-1][0] == seen[0] - 1:
                runs[-1].append(seen)
            else:
                runs.append([seen])
        chosen = {at for at, p, _, _ in masks if p >= high}
        for run in runs:
            at, p, _, _ = best_first(run)[0]
            if p >= low:
                chosen.add(at)
        return chosen or {best_first(masks)[0][0]}

    return lambda num_masks: pick


def fixed_steps(num_steps: int) -> MakePick:
    def make(num_masks: int) -> Pick:
        counts = [num_masks // num_steps] * num_steps
        for i in range(num_masks % num_steps):
            counts[i] += 1
        schedule = iter([count for count in counts if count])
        # Where sub-blocks make it take longer than planned, it goes on with as many each.
        more = max(1, num_masks // num_steps)
        return lambda masks: {at for at, *_ in best_first(masks)[: next(schedule, more)]}

    return make


def revealed(x: list[int], mask_id: int) -> State:
    return {at: token for at, token in enumerate(x) if token != mask_id}


def text_is_over(x: list[int], num_prompt: int, end: int, mask_id: int, eos: int) -> bool:
    """An end of text stands in the answer with no mask before it."""
    for token in x[num_prompt:end]:
        if token == mask_id:
            return False
        if token == eos:
            return True
    return False


def block_diffusion(
    logits: Callable[..., Any],
    prompt: list[int],
    num_new: int,
    *,
    block_length: int,
    sub_block_length: int = 0,
    from_prompt_end: bool = False,
    shift: int,
    make_pick: MakePick,
    mask_id: int,
    eos: int,
) -> list[State]:
    """SDAR and LLaDA2 (shift 0) and Fast-dLLM v2 (shift 1): the states the text goes through."""
    n = len(prompt)
    block_of, edges = blocks(n, num_new, block_length, from_prompt_end)
    x = [*prompt, *[mask_id] * (edges[-1] - n)]
    history = [revealed(x, mask_id)]

    def run(end: int) -> Any:
        sees = [[block_of[col] <= block_of[row] for col in range(end)] for row in range(end)]
        return logits(x[:end], np.array(sees))

    for start, end in itertools.pairwise(edges):
        if end <= n:
            continue
        if shift and x[start] == mask_id:
            x[start] = best_of(run(start)[start - 1], mask_id)[2]
            history.append(revealed(x, mask_id))
        pick = make_pick(x[start:end].count(mask_id))
        while mask_id in x[start:end] and not text_is_over(x, n, end, mask_id, eos):
            masks = [at for at in range(start, end) if x[at] == mask_id]
            if sub_block_length:
                leftmost = (masks[0] - start) // sub_block_length
                masks = [at for at in masks if (at - start) // sub_block_length == leftmost]
            scores = run(end)
            seen = [(at, *best_of(scores[at - shift], mask_id)) for at in masks]
            chosen = pick(seen)
            x = with_tokens(x, [entry for entry in seen if entry[0] in chosen])
            history.append(revealed(x, mask_id))
        if text_is_over(x, n, end, mask_id, eos):
            break
    return history


def blocks(
    num_prompt: int, num_new: int, length: int, from_prompt_end: bool
) -> tuple[list[int], list[int]]:
    """The number of each position's block, and the edges between blocks."""
    edges = [0]
    if from_prompt_end and num_prompt % length:
        edges.append(num_prompt % length)
    while edges[-1] < num_prompt + num_new:
        edges.append(edges[-1] + length)
    block_of = [
        number for number, edge in enumerate(edges[1:]) for _ in range(edge - edges[number])
    ]
    return block_of, edges


def with_tokens(x: list[int], changes: list[Seen]) -> list[int]:
    new = {at: token for at, _, _, token in changes}
    return [new.get(at, token) for at, token in enumerate(x)]


def edited_block_diffusion(
    logits: Callable[..., Any],
    prompt: list[int],
    num_new: int,
    *,
    block_length: int,
    make_pick: MakePick,
    edit_threshold: float,
    edit_budget: int,
    mask_id: int,
    eos: int,
) -> list[State]:
    """LLaDA2.1: revealed tokens give way to better ones; no state of a block comes twice."""
    n = len(prompt)
    block_of, edges = blocks(n, num_new, block_length, False)
    x = [*prompt, *[mask_id] * (edges[-1] - n)]
    history = [revealed(x, mask_id)]
    for start, end in itertools.pairwise(edges):
        if end <= n:
            continue
        sees = [[block_of[col] <= block_of[row] for col in range(end)] for row in range(end)]
        pick = make_pick(x[start:end].count(mask_id))
        states: list[list[int]] = []
        budget = edit_budget
        while True:
            over = text_is_over(x, n, end, mask_id, eos) or mask_id not in x[start:end]
            scores = logits(x[:end], np.array(sees))
            seen = [(at, *best_of(scores[at], mask_id)) for at in range(max(start, n), end)]
            masks = [entry for entry in seen if x[entry[0]] == mask_id]
            chosen = set() if over else pick(masks)
            edits = [
                entry
                for entry in best_first(seen)
                if x[entry[0]] != mask_id and x[entry[0]] != entry[3] and entry[1] >= edit_threshold
            ][:budget]
            x = with_tokens(x, [entry for entry in masks if entry[0] in chosen])
            while edits and with_tokens(x, edits)[start:end] in states:
                edits.pop()
            x = with_tokens(x, edits)
            states.append(x[start:end])
            budget -= len(edits)
            history.append(revealed(x, mask_id))
            if over and not edits:
                break
        if text_is_over(x, n, end, mask_id, eos):
            break
    return history


def full_diffusion(
    logits: Callable[..., Any],
    prompt: list[int],
    num_new: int,
    *,
    block_length: int,
    shift: int,
    make_pick: MakePick,
    mask_id: int,
    eos: int,
) -> list[State]:
    """LLaDA-8B (shift 0) and Dream (shift 1): semi-autoregressive blocks, all computed anew."""
    n, total = len(prompt), len(prompt) + num_new
    x = [*prompt, *[mask_id] * num_new]
    history = [revealed(x, mask_id)]
    for start in range(n, total, block_length):
        end = min(start + block_length, total)
        pick = make_pick(end - start)
        while mask_id in x[start:end] and not text_is_over(x, n, end, mask_id, eos):
            scores = logits(x, np.ones((total, total), bool))
            masks = [at for at in range(start, end) if x[at] == mask_id]
            seen = [(at, *best_of(scores[at - shift], mask_id)) for at in masks]
            chosen = pick(seen)
            x = with_tokens(x, [entry for entry in seen if entry[0] in chosen])
            history.append(revealed(x, mask_id))
        if text_is_over(x, n, end, mask_id, eos):
            break
    return history


def cached_full_diffusion(
    among: Callable[..., Any],
    num_layers: int,
    prompt: list[int],
    num_new: int,
    *,
    dual: bool,
    refresh_interval: int,
    block_length: int,
    shift: int,
    make_pick: MakePick,
    mask_id: int,
    eos: int,
) -> list[State]:
    """Fast-dLLM v1 with prefix cache or dual cache.

    `among(tokens, positions, past)` computes rows that see each other and the keys and values in
    `past`, one dictionary by position for each layer; it returns logits and the new dictionaries.
    """
    n, total = len(prompt), len(prompt) + num_new
    x = [*prompt, *[mask_id] * num_new]
    history = [revealed(x, mask_id)]
    for start in range(n, total, block_length):
        end = min(start + block_length, total)
        pick = make_pick(end - start)
        step = 0
        while mask_id in x[start:end] and not text_is_over(x, n, end, mask_id, eos):
            first = start - shift
            if step == 0 or (refresh_interval and step % refresh_interval == 0):
                first = 0
                scores, past = among(x, list(range(total)), [{} for _ in range(num_layers)])
            elif dual:
                scores, past = among(x[first:end], list(range(first, end)), past)
            else:
                prefix = [{at: kv for at, kv in layer.items() if at < first} for layer in past]
                scores, _ = among(x[first:], list(range(first, total)), prefix)
            step += 1
            masks = [at for at in range(start, end) if x[at] == mask_id]
            seen = [(at, *best_of(scores[at - shift - first], mask_id)) for at in masks]
            chosen = pick(seen)
            x = with_tokens(x, [entry for entry in seen if entry[0] in chosen])
            history.append(revealed(x, mask_id))
        if text_is_over(x, n, end, mask_id, eos):
            break
    return history
