from __future__ import annotations

import pytest

from voice.answering import word_start
from voice.heard import SpokenClause

CLAUSES = (SpokenClause("An ember", 100, (30, 80)), SpokenClause("glows.", 60, (50,)))


@pytest.mark.parametrize(
    ("at", "start"),
    [(0, 0), (29, 0), (30, 30), (79, 30), (80, 80), (99, 80), (100, 100), (149, 100), (155, 150)],
)
def test_a_paused_answer_goes_on_at_the_beginning_of_a_word(at: int, start: int) -> None:
    assert word_start(CLAUSES, at) == start


def test_after_the_last_clause_nothing_is_said_again() -> None:
    assert word_start(CLAUSES, 160) == 160
    assert word_start((), 0) == 0
