"""Draft and verify as decisions: whatever is drafted, the text is the model's own greedy text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.canvas import Canvas, Prediction, Step
from llm.models.spec import DiffusionSpec

MASK = 0
SPEC = DiffusionSpec(mask_id=MASK, eos_ids=frozenset({1}))


def next_token(prefix: tuple[int, ...]) -> int:
    """A stand-in for a language model: any function of the whole prefix will do."""
    return 2 + hash(prefix) % 5


class FakeForward:
    """Keeps what a cache would hold and computes each row from it, as a transformer would.

    Rows see the cache and the rows before them. A row that is computed while a wrong token
    stands before it gives a wrong result, and a cache entry that was never overwritten stays.
    """

    def __init__(self, luck: list[bool]) -> None:
        self.cache: list[int] = []
        self.luck = iter(luck)

    def __call__(self, step: Step) -> list[Prediction]:
        assert step.start <= len(self.cache), "a hole in the cache"
        del self.cache[step.start :]
        self.cache += step.tokens
        predictions = []
        for index in step.wanted:
            if step.visible[index] == step.start + index + 1 and step.tokens[index] != MASK:
                token = next_token(tuple(self.cache[: step.start + index + 1]))
            else:
                token = self.draft(step, index)
            predictions.append(Prediction(token, 0.5))
        return predictions

    def draft(self, step: Step, index: int) -> int:
        """A lucky draft is the true continuation of the rows before the masks."""
        num_causal = sum(token != MASK for token in step.tokens)
        prefix = tuple(self.cache[: step.start + num_causal])
        for _ in range(index - num_causal + 1):
            prefix += (next_token(prefix),)
        return next_token(prefix) if next(self.luck, False) else 9


def greedy(prompt: list[int], length: int) -> list[int]:
    clean = list(prompt)
    while len(clean) < length:
        clean.append(next_token(tuple(clean)))
    return clean


@given(
    prompt=st.lists(st.integers(2, 8), min_size=1, max_size=30),
    luck=st.lists(st.booleans(), max_size=80),
    masks=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    max_rows=st.integers(1, 9),
)
@settings(deadline=None)
def test_committed_text_equals_greedy(
    prompt: list[int], luck: list[bool], masks: list[int], max_rows: int
) -> None:
    canvas, forward = Canvas(SPEC, list(prompt)), FakeForward(luck)
    for num_masks in masks:
        before = len(canvas.clean)
        step = canvas.next_step(max_rows=max_rows, num_masks=num_masks)
        outcome = canvas.apply(step, forward(step), gate=0.1)
        assert len(canvas.clean) - before == len(outcome.committed)
        assert bool(outcome.committed) == bool(step.wanted), "each decode forward commits"
        assert outcome.num_accepted <= outcome.num_drafted
        assert canvas.clean == greedy(prompt, len(canvas.clean))
        assert forward.cache[: canvas.num_cached] == canvas.clean[: canvas.num_cached]
        assert MASK not in canvas.clean


def test_lucky_drafts_commit_whole_blocks() -> None:
    canvas, forward = Canvas(SPEC, [5]), FakeForward([True] * 99)
    sizes = []
    for _ in range(3):
        step = canvas.next_step(max_rows=8, num_masks=3)
        sizes.append(len(canvas.apply(step, forward(step), gate=0.5).committed))
    assert sizes == [1, 4, 4]


def predictions(*pairs: tuple[int, float]) -> list[Prediction]:
    return [Prediction(token, probability) for token, probability in pairs]


@pytest.mark.parametrize(
    ("masks", "gate", "carried"),
    [
        ([(3, 0.9), (4, 0.8)], 0.5, (3, 4)),
        ([(3, 0.9), (4, 0.4), (5, 0.9)], 0.5, (3,)),
        ([(3, 0.4), (4, 0.9)], 0.5, ()),
        ([(3, 0.5)], 0.5, (3,)),
        ([(3, 0.9), (MASK, 0.9), (5, 0.9)], 0.5, (3,)),
    ],
)
def test_drafts_are_carried_up_to_the_first_doubt(
    masks: list[tuple[int, float]], gate: float, carried: tuple[int, ...]
) -> None:
    canvas = Canvas(SPEC, [7])
    step = canvas.next_step(max_rows=8, num_masks=len(masks))
    canvas.apply(step, predictions((2, 1.0), *masks), gate=gate)
    assert canvas.drafts == carried


def test_drafts_behind_a_rejected_one_are_dropped() -> None:
    canvas = Canvas(SPEC, [7, 2], num_cached=1, drafts=(3, 4))
    step = canvas.next_step(max_rows=8, num_masks=1)
    assert step == Step(start=1, tokens=(2, 3, 4, MASK), visible=(2, 3, 4, 5), wanted=(0, 1, 2, 3))
    outcome = canvas.apply(step, predictions((3, 1), (6, 1), (8, 1), (5, 1)), gate=0.1)
    assert (outcome.committed, outcome.num_drafted, outcome.num_accepted) == ((3, 6), 2, 1)
    assert (canvas.clean, canvas.num_cached, canvas.drafts) == ([7, 2, 3, 6], 3, ())


def test_a_long_prompt_is_filled_in_chunks_without_predictions() -> None:
    canvas = Canvas(SPEC, [2, 3, 4, 5, 6])
    first = canvas.next_step(max_rows=2, num_masks=3)
    assert first == Step(start=0, tokens=(2, 3), visible=(1, 2), wanted=())
    assert canvas.apply(first, [], gate=0.1).committed == ()
    last = canvas.next_step(max_rows=4, num_masks=2)
    assert last == Step(2, (4, 5, 6, MASK, MASK), visible=(3, 4, 5, 7, 7), wanted=(2, 3, 4))
