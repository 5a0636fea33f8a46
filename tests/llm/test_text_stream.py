"""Text events: committed text is right and complete, guesses are replaced, stops never leak."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.engine.text_stream import TextStream
from llm.models.gguf import GgufFile
from llm.tokenizer import Tokenizer
from llm.types import Committed, Event, Provisional, Revised
from tests.llm.tiny import write_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("stream") / "m.gguf"
    return Tokenizer(GgufFile(write_tiny_gguf(path)).tokenizer)


class Reader:
    """A client that shows guesses: what it sees must always follow from the events alone."""

    def __init__(self) -> None:
        self.committed = self.guess = ""

    def take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Committed(text):
                    shown = self.committed + self.guess
                    self.committed += text
                    agrees = shown.startswith(self.committed)
                    self.guess = shown[len(self.committed) :] if agrees else ""
                case Provisional(start, text):
                    assert start == len(self.committed)
                    self.guess = text
                case Revised(start, text):
                    assert start == len(self.committed)
                    self.guess = text


alphabet = st.sampled_from(["a", "b", "ab", "stop", "s", "to", "é", "日", "\n", " "])


@given(
    pieces=st.lists(alphabet, max_size=12),
    stop=st.lists(st.sampled_from(["stop", "ab", "b\n", "日a"]), max_size=2),
    sizes=st.lists(st.integers(1, 4), min_size=40, max_size=40),
    drafts=st.lists(st.sampled_from(["", "a", "sto", "é", "xyz"]), min_size=40, max_size=40),
)
@settings(deadline=None)
def test_any_chunking_gives_the_text_up_to_the_first_stop(
    tokenizer: Tokenizer, pieces: list[str], stop: list[str], sizes: list[int], drafts: list[str]
) -> None:
    text = "".join(pieces)
    ends = [at for s in stop if (at := text.find(s)) >= 0]
    expected = text[: min(ends)] if ends else text
    stream, reader = TextStream(tokenizer, tuple(stop)), Reader()
    ids = tokenizer.encode(text)
    for size, draft in zip(sizes, drafts, strict=True):
        if not ids or stream.stopped:
            break
        now, ids = ids[:size], ids[size:]
        guess = tokenizer.encode(draft)
        reader.take(stream.commit(now, guess))
        assert expected.startswith(reader.committed)
        assert reader.guess == "" if stream.stopped else reader.guess.endswith(draft), (
            "the reader must see the guess"
        )
    reader.take(stream.finish())
    assert reader.guess == ""
    assert reader.committed == expected
    assert stream.stopped == bool(ends)


def test_a_guess_that_comes_true_is_not_told_twice(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    a, b, c = tokenizer.encode("abc")
    assert stream.commit([a], [b, c]) == [Committed("a"), Provisional(1, "bc")]
    assert stream.commit([b], [c]) == [Committed("b")]
    assert stream.commit([c], []) == [Committed("c")]


def test_a_wrong_guess_is_revised(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    a, b, c, d = tokenizer.encode("abcd")
    stream.commit([a], [b, c])
    assert stream.commit([d], [a]) == [Committed("d"), Revised(2, "a")]
    assert stream.commit([b], []) == [Committed("b")]


def test_a_guess_that_shrinks_is_revised(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    a, b, c = tokenizer.encode("abc")
    stream.commit([a], [b, c])
    assert stream.commit([b], []) == [Committed("b"), Revised(2, "")]


def test_the_same_guess_behind_another_commit_is_told_again(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    a, b, c, d = tokenizer.encode("abcd")
    stream.commit([a], [b, c])
    assert stream.commit([d], [c]) == [Committed("d"), Revised(2, "c")]


def test_a_guess_that_grows_is_provisional(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    a, b, c, d = tokenizer.encode("abcd")
    stream.commit([a], [b])
    assert stream.commit([b], [c, d]) == [Committed("b"), Provisional(2, "cd")]
