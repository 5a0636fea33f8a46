"""Which drafts stand: sampling from the target's distribution while skipping over good guesses.

Whatever is drafted, the tokens that come out are distributed as if drawn one by one from the
target (Leviathan et al., arXiv 2211.17192, algorithm 1 and appendix A.1). Greedy decoding is the
case where each target distribution is certain: drafts stand while they equal the best token.

Drafts that were not drawn at random (the best token of a mask's row) are points: q(x) = 1. A draft
then stands with probability p(x), and a rejected one is replaced from p without x. Drawing the
token from p and comparing it with the draft does just that with a single number, and makes the
text *independent of the drafts*: it is the text that one-by-one drawing gives with the same
numbers. Drafts drawn from a distribution stand more often, with probability sum(min(p, q)), but
there the same seed gives the same text only as long as the drafts are the same too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from llm.engine.sampling import Probabilities, Purpose, draw


class Verdict(NamedTuple):
    """How many drafts stand, and the token that comes after them."""

    num_accepted: int
    next_token: int


def verify(
    drafts: Sequence[int],
    draft_probabilities: Sequence[Probabilities] | None,
    target_rows: Callable[[int], Probabilities],
    uniforms: Callable[[int, Purpose], float],
) -> Verdict:
    """Accept drafts up to the first that fails; the token after them comes from the target.

    drafts: guesses for the next positions. draft_probabilities: for each draft the distribution,
    shape (vocabulary,), that it was drawn from; None where drafts were not drawn at random.
    target_rows: target_rows(i) gives the target's distribution after drafts[:i], shape
    (vocabulary,). Asked once per row, in order, and only when drafts[:i] are accepted, so that
    penalties may count them, a grammar may follow along and rows behind a rejection cost nothing.
    uniforms: uniforms(i, purpose) gives the number in [0, 1) of position i; the same for the same
    arguments. Position 0 is that of the first draft, so the engine adds what is committed.
    """
    if draft_probabilities is None:
        return _verify_points(drafts, target_rows, uniforms)
    assert len(draft_probabilities) == len(drafts), "one distribution for each draft"
    for i, (draft, guessed) in enumerate(zip(drafts, draft_probabilities, strict=True)):
        target = target_rows(i)
        assert guessed[draft] > 0, "a draft must come from the distribution given for it"
        # u < p / q without the division: p above q always passes, p = 0 never does.
        if uniforms(i, Purpose.ACCEPT) * guessed[draft] >= target[draft]:
            return Verdict(i, draw(_residual(target, guessed), uniforms(i, Purpose.TOKEN)))
    last = len(drafts)
    return Verdict(last, draw(target_rows(last), uniforms(last, Purpose.TOKEN)))


def _verify_points(
    drafts: Sequence[int],
    target_rows: Callable[[int], Probabilities],
    uniforms: Callable[[int, Purpose], float],
) -> Verdict:
    for i, draft in enumerate(drafts):
        token = draw(target_rows(i), uniforms(i, Purpose.TOKEN))
        if token != draft:
            return Verdict(i, token)
    last = len(drafts)
    return Verdict(last, draw(target_rows(last), uniforms(last, Purpose.TOKEN)))


def _residual(target: Probabilities, guessed: Probabilities) -> Probabilities:
    """What the target holds more than the guess did: max(p - q, 0), unnormalised."""
    excess = np.maximum(target - guessed, 0.0)
    # p = q but for rounding: a rejection is next to impossible, and nothing is left over.
    return excess if excess.any() else target
