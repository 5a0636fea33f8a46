from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.normalise import speakable


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("The capital is Paris.", "The capital is Paris."),
        ("**Bold**, *stressed*, __bold__ and ~~gone~~", "Bold, stressed, bold and gone"),
        ("use `print` here", "use print here"),
        ("# Title", "Title"),
        ("- item", "item"),
        ("> quoted", "quoted"),
        ("```python", ""),
        ("[Paris](https://example.org/paris)", "Paris"),
        ("2 * 3 = 6", "2 * 3 = 6"),
        ("snake_case", "snake case"),
        ("Hi \U0001f600\ufe0f there \U0001f468\u200d\U0001f469", "Hi there"),
        ("\U0001f600", ""),
        ("...", ""),
        ("20\u00b0C", "20\u00b0C"),
        ("$500, thanks", "500 dollars, thanks"),
        ("$1", "1 dollar"),
        ("$1,000.50", "1,000 dollars and 50 cents"),
        ("\u00a30.01", "1 penny"),
        ("$3.5 million", "$3.5 million"),
        ("$5 million", "$5 million"),
        ("at 8:00", "at 8 o'clock"),
        ("at 8:00 p.m. sharp", "at 8 p.m. sharp"),
        ("at 8:30", "at 8:30"),
        ("Dr. Smith vs. Mr. Jones", "Doctor Smith versus Mister Jones"),
        ("a  b\n c", "a b c"),
    ],
)
def test_what_is_spoken(written: str, spoken: str) -> None:
    assert speakable(written) == spoken


@given(st.text())
def test_what_is_spoken_is_one_line_with_something_to_say_or_nothing(written: str) -> None:
    spoken = speakable(written)
    assert spoken == " ".join(spoken.split())
    assert not spoken or any(character.isalnum() for character in spoken)


@given(st.from_regex(r"[A-Za-z]{1,8}( [A-Za-z]{1,8}){0,5}[.?!]", fullmatch=True))
def test_plain_sentences_are_left_alone(sentence: str) -> None:
    assert speakable(sentence) == sentence
