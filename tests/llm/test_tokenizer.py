"""Tokens there and back; control tokens only where the template wrote them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.chat_template import ChatTemplate
from llm.models.gguf import GgufFile
from llm.tokenizer import TextDecoder, Tokenizer
from llm.types import InvalidRequestError, Message
from tests.llm.tiny import CONTROL, TEMPLATE, write_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("tok") / "m.gguf"
    return Tokenizer(GgufFile(write_tiny_gguf(path)).tokenizer)


texts = st.text() | st.lists(st.sampled_from([*CONTROL, "a", "<|", "é", "日", " "])).map("".join)


@given(text=texts)
@settings(deadline=None)
def test_text_survives_there_and_back(tokenizer: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=texts)
@settings(deadline=None)
def test_user_text_never_becomes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids = ChatTemplate(TEMPLATE).encode((Message("user", text),), tokenizer)
    control = [i for i in ids if i < len(CONTROL)]
    assert control == [1, 2, 1]
    without_guard = text.replace("\ue000", "")
    assert tokenizer.decode(ids) == f"user\n{without_guard}\nassistant\n"


def test_merges_are_applied_by_rank(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("hell world")] == [
        b"hell",
        b" w",
        b"or",
        b"l",
        b"d",
    ]


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("123")] == [b"1", b"2", b"3"]


@given(text=st.text(), cuts=st.lists(st.integers(0, 200)))
@settings(deadline=None)
def test_decoding_in_pieces_equals_decoding_at_once(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids = tokenizer.encode(text)
    bounds = [0, *sorted(min(c, len(ids)) for c in cuts), len(ids)]
    decoder = TextDecoder(tokenizer)
    out = ""
    for start, end in itertools.pairwise(bounds):
        peeked = decoder.peek(ids[start:end])
        piece = decoder.feed(ids[start:end])
        assert piece == peeked
        assert "\ufffd" not in piece.replace("\ufffd", "", text.count("\ufffd"))
        out += piece
    assert out + decoder.finish() == text


def test_half_a_character_is_held_and_then_replaced(tokenizer: Tokenizer) -> None:
    decoder = TextDecoder(tokenizer)
    ids = tokenizer.encode("é")
    assert decoder.feed(ids[:1]) == ""
    assert decoder.finish() == "\ufffd"


def test_template_refusals_are_the_callers_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="at least one message"):
        ChatTemplate(TEMPLATE).encode((), tokenizer)
    broken = ChatTemplate("{{ messages[7]['content'].upper() }}")
    with pytest.raises(InvalidRequestError, match="refused"):
        broken.encode((Message("user", "x"),), tokenizer)
