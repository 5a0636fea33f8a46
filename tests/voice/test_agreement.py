from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.agreement import Agreement


@pytest.mark.parametrize(
    ("hypotheses", "agreed"),
    [
        (["What is"], ""),
        (["What is", "What is the"], "What is"),
        (["What is the", "What is the"], "What is"),  # the newest word is held back
        (["What is the", "Where is the cat", "Where is the cat on"], "Where is the cat"),
        (["what is.", "What is the", "What is the cap"], "What is the"),
        (["a b c", "a b c d", "x y z", "x y z w"], "a b c"),  # never taken back
        ([], ""),
        (["", ""], ""),
    ],
)
def test_what_two_hypotheses_agree_on(hypotheses: list[str], agreed: str) -> None:
    agreement = Agreement()
    for hypothesis in hypotheses:
        agreement.feed(hypothesis)
    assert agreement.agreed == agreed


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5).map(" ".join)))
def test_it_only_grows(hypotheses: list[str]) -> None:
    agreement = Agreement()
    before = ""
    for hypothesis in hypotheses:
        after = agreement.feed(hypothesis)
        assert after.startswith(before)
        assert len(after.split()) <= max(len(hypothesis.split()) - 1, len(before.split()))
        before = after
