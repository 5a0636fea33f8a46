from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.hallucination import cut_loops, is_made_up, is_phantom


@pytest.mark.parametrize(
    ("no_speech", "log_probability", "made_up"),
    [(0.9, -1.5, True), (0.9, -0.2, False), (0.1, -1.5, False), (0.1, -0.2, False)],
)
def test_words_are_made_up_only_if_both_signs_agree(
    no_speech: float, log_probability: float, made_up: bool
) -> None:
    assert is_made_up(no_speech, log_probability) is made_up


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability", "phantom"),
    [
        ("Thank you for watching!", 0.0, 0.0, True),
        ("thanks for watching", 0.0, 0.0, True),
        ("[BLANK_AUDIO]", 0.0, 0.0, True),
        ("(music)", 0.0, 0.0, True),
        ("Thank you.", 0.0, -0.1, False),
        ("Thank you.", 0.5, -0.1, True),
        ("you", 0.0, -0.9, True),
        ("Music.", 0.9, -0.9, False),
        ("Thank you for watching the dog yesterday.", 0.9, -0.9, False),
        ("What is [this]?", 0.0, 0.0, False),
    ],
)
def test_known_phantoms(text: str, no_speech: float, log_probability: float, phantom: bool) -> None:
    assert is_phantom(text, no_speech, log_probability) is phantom


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("No no no.", "No no no."),
        ("Yes yes, yes, yes, yes. Go", "Yes Go"),
        ("I am here. I am here. I am here. I am here.", "I am here."),
        ("Well a b a b a b a b c", "Well a b c"),
        ("5 5 5 5 5 5", "5 5 5 5 5 5"),
        ("", ""),
    ],
)
def test_loops_are_cut(text: str, cut: str) -> None:
    assert cut_loops(text) == cut


@given(st.lists(st.sampled_from("ab1.")).map(" ".join))
def test_cutting_ends_and_adds_nothing(text: str) -> None:
    cut = cut_loops(text).split()
    assert len(cut) <= len(text.split())
    assert set(cut) == set(text.split())
