from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice.clauses import ClauseCutter, Pace


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


@settings(deadline=None)
@given(st.one_of(TEXTS, st.text()))
def test_clauses_joined_are_the_text_up_to_whitespace(text: str) -> None:
    assert "".join("".join(cut(text)).split()) == "".join(text.split())


@settings(deadline=None)
@given(st.one_of(TEXTS, st.text()), st.data())
def test_how_the_text_arrives_makes_no_difference(text: str, data: st.DataObject) -> None:
    seams = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *seams], [*seams, len(text)], strict=True)]
    assert cut("", *pieces) == cut(text)


@settings(deadline=None)
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
            "Yes. The small, red, old car that I bought from him stopped right there, and died.",
            [
                "Yes.",
                "The small, red, old car that I bought from him stopped right there,",
                "and died.",
            ],
        ),
        # Before a preposition the first clause may end too, after four words.
        (
            "Mount Everest is the highest mountain in the world.",
            ["Mount Everest is the highest mountain", "in the world."],
        ),
        ("I am in the house at night.", ["I am in the house", "at night."]),
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
    assert [len(clause.split()) for clause in clauses] == [8, 30, 30, 30, 2]


SENTENCE = "He walked, as always, down the long road to the old house, and nobody was there. "


@pytest.mark.parametrize(
    ("waiting_ms", "longest"),
    [(0, 4), (400, 5), (700, 9), (1_500, 12), (3_000, 12), (9_000, 16)],
)
def test_clauses_grow_with_the_sound_that_waits(waiting_ms: float, longest: int) -> None:
    cutter = ClauseCutter()
    cutter.feed("Yes. ")
    clauses = cutter.feed(SENTENCE, waiting_ms)
    assert max(len(clause.split()) for clause in clauses) <= longest
    assert " ".join(clauses) == SENTENCE.strip()


def test_with_much_sound_waiting_a_sentence_is_spoken_whole() -> None:
    cutter = ClauseCutter()
    cutter.feed("Yes. ")
    assert cutter.feed(SENTENCE, 9_000)[0].startswith("He walked, as always, down the long road")


VOCABULARY = [
    "one",
    "two,",
    "three",
    "and",
    "extraordinarily",
    "in",
    "house.",
    "of",
    "the",
    "Paris",
]


@settings(deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.05, 0.12, 0.3]),
    st.sampled_from([15.0, 30.0, 60.0]),
)
def test_the_sound_never_runs_out(seed: int, real_time_factor: float, words_per_s: float) -> None:
    """A voice that is fast enough, and a language model that writes faster than one speaks.

    A simulation in milliseconds: one voice makes the clauses in turn; what is made is heard.
    """
    rng = random.Random(seed)
    pace = Pace(real_time_factor)
    cutter = ClauseCutter(pace)
    voice_free_ms, sound_until_ms, gaps = 0.0, 0.0, []
    made: list[tuple[float, float]] = []  # when each clause is ready, and how long it sounds
    words = [*["It", "is", "so", "because"], *rng.choices(VOCABULARY, k=80)]
    for number, word in enumerate(words):
        now_ms = number * 1_000 / words_per_s
        ready_ms = sum(sound for at, sound in made if at <= now_ms)
        heard_ms = now_ms - made[0][0] if made and made[0][0] <= now_ms else 0.0
        clauses = cutter.feed(word + " ", max(0.0, ready_ms - heard_ms))
        for clause in clauses + (cutter.finish() if number == len(words) - 1 else []):
            sound_ms = len(clause.split()) * pace.word_ms
            voice_free_ms = max(voice_free_ms, now_ms) + pace.fixed_ms
            voice_free_ms += sound_ms * real_time_factor
            made.append((voice_free_ms, sound_ms))
            gaps.append(voice_free_ms - sound_until_ms if sound_until_ms else 0.0)
            sound_until_ms = max(sound_until_ms, voice_free_ms) + sound_ms
    assert max(gaps) <= 0.0, (gaps, made)
