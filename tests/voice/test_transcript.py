from __future__ import annotations

import pytest

from voice.transcript import same_words, starts_with_words, words_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What's up?", "what\u2019s up", True),
        ("Set 3 timers.", "Set three timers", True),
        ("Okay, um, go.", "ok go", True),
        ("Well-known", "well known", True),
        ("I can", "I can't", False),
        ("", "...", True),
        ("Go", "Go on", False),
    ],
)
def test_spelling_case_and_fillers_do_not_count(one: str, other: str, same: bool) -> None:
    assert same_words(one, other) is same


def test_a_beginning() -> None:
    assert starts_with_words("What is it called?", "what is")
    assert starts_with_words("What", "")
    assert not starts_with_words("What is", "What is it")
    assert words_of("Uh, HMM... it's 5!") == ("it's", "5")
