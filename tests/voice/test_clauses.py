from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice.clauses import ClauseCutter


def cut(text: str, *more: str) -> list[str]:
    cutter = ClauseCutter()
    clauses = [clause for piece in (text, *more) for clause in cutter.feed(piece)]
    return clauses + cutter.finish()


# Words, numbers, abbreviations and punctuation in every order, rather than random characters.
FRAGMENTS = st.sampled_from(
    [
        "Yes",
        "no",
        "the",
        "capital",
        "of",
        "and",
        "because",
        "is",
        "Paris",
        "3.14",
        "1,000",
        "Dr.",
        "e.g.",
        "U.S.",
        "10:30",
        "p.m.",
        "1.",
        "wait...",
        "—",
        "…",
        ",",
        ".",
        "!",
        "?",
        ";",
        ":",
        "**",
        "\n",
        "\t",
        "(",
        ")",
        "“quoted.”",
        "1990—1995",
        "😀",
        "-",
        "#",
        "*",
    ]
)
TEXTS = st.lists(st.tuples(FRAGMENTS, st.sampled_from(["", " ", "  "])), max_size=60).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)


@given(st.one_of(TEXTS, st.text()))
def test_clauses_joined_are_the_text_up_to_whitespace(text: str) -> None:
    assert "".join("".join(cut(text)).split()) == "".join(text.split())


@given(st.one_of(TEXTS, st.text()), st.data())
def test_how_the_text_arrives_makes_no_difference(text: str, data: st.DataObject) -> None:
    seams = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *seams], [*seams, len(text)], strict=True)]
    assert cut("", *pieces) == cut(text)


@given(TEXTS)
def test_no_clause_but_the_last_is_without_a_word(text: str) -> None:
    clauses = cut(text)
    assert all(clause == clause.strip() != "" for clause in clauses)
    assert all(any(c.isalnum() for c in clause) for clause in clauses[:-1])


@pytest.mark.parametrize(
    "whole",
    [
        "It is 3.14 today",
        "It costs 1,000 yen",
        "Ask Dr. Smith about it",
        "See you at 10:30 p.m. tomorrow",
        "The U.S. dollar e.g. a coin",
        "J. K. Rowling wrote it",
        "From 1990\u20141995 it rained",
        "1. Paris",
        "I am . . . not sure",
    ],
)
def test_numbers_abbreviations_and_initials_are_not_cut(whole: str) -> None:
    assert cut(whole) == [whole]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("", []),
        (" \n ", []),
        ("Yes.", ["Yes."]),
        ("Yes! It is Paris.", ["Yes!", "It is Paris."]),
        ("Yes, it is.", ["Yes, it is."]),
        ("Of course, it is Paris.", ["Of course,", "it is Paris."]),
        ("Well... maybe so, yes.", ["Well... maybe so,", "yes."]),
        ("He said \u201cgo.\u201d Then he left.", ["He said \u201cgo.\u201d", "Then he left."]),
        ("**Paris.** It is big.", ["**Paris.**", "It is big."]),
        ("I see\u2014it is Paris.", ["I see\u2014", "it is Paris."]),
        ("- one\n- two\n", ["- one", "- two"]),
        (
            "The sky is blue because air scatters light.",
            ["The sky is blue", "because air scatters light."],
        ),
        # Later clauses are longer: a comma counts only after enough words.
        (
            "Yes. The small, red, old car stopped right there, and it never moved again.",
            ["Yes.", "The small, red, old car stopped right there,", "and it never moved again."],
        ),
        ("Hello! \U0001f600", ["Hello!", "\U0001f600"]),
    ],
)
def test_where_clauses_end(text: str, clauses: list[str]) -> None:
    assert cut(text) == clauses


def test_a_clause_is_given_out_as_soon_as_it_is_sure() -> None:
    cutter = ClauseCutter()
    assert cutter.feed("Paris") == []
    assert cutter.feed(" it is.") == []
    assert cutter.feed(" ") == ["Paris it is."]


def test_text_without_punctuation_is_cut_all_the_same() -> None:
    clauses = cut("word " * 100)
    assert [len(clause.split()) for clause in clauses] == [12, 30, 30, 28]
