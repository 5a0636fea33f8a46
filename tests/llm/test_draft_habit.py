"""Drafting stops where it does not pay, is tried again, and comes back where it does."""

from __future__ import annotations

from llm.engine.draft_habit import PROBE_EVERY, DraftHabit


def forwards(habit: DraftHabit, num: int, accepted: int) -> list[int]:
    """Masks of `num` forwards while every drafting forward gets `accepted` drafts through."""
    masks = []
    for _ in range(num):
        masks.append(habit.num_masks(3))
        if masks[-1]:
            habit.note(accepted)
    return masks


def test_good_drafts_are_always_made() -> None:
    assert forwards(DraftHabit(), 200, accepted=1) == [3] * 200


def test_bad_drafts_are_made_only_to_probe() -> None:
    habit = DraftHabit()
    forwards(habit, 100, accepted=0)
    assert not habit.pays
    later = forwards(habit, 10 * PROBE_EVERY, accepted=0)
    assert later.count(3) == 10
    assert set(later) == {0, 3}


def test_a_model_that_learned_to_draft_is_noticed() -> None:
    habit = DraftHabit()
    forwards(habit, 100, accepted=0)
    forwards(habit, 20 * PROBE_EVERY, accepted=3)
    assert habit.pays
    assert forwards(habit, 50, accepted=3) == [3] * 50
