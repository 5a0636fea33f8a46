"""Prompts of plain text, and prompts too long, before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm.types import ContextLengthError, InvalidRequestError, Message, Request, Tool, ToolCall
from tests.llm.api_server import tiny_tokenizer
from tests.llm.test_engine import make, run


def test_a_plain_prompt_goes_to_the_model_as_it_is(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    engine, runner = make(tokenizer, "Hello there.")
    ((_, finished),) = run(engine, Request((), prompt="once upon a time", max_new_tokens=2))
    assert finished.usage.num_prompt_tokens == len(tokenizer.encode("once upon a time"))
    assert any(cache[:3] == tokenizer.encode("once")[:3] for cache in runner.caches)


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    engine, _ = make(tiny_tokenizer(tmp_path), "x")
    with pytest.raises(InvalidRequestError, match="empty"):
        run(engine, Request((), prompt=""))


HUGE = "hi there " * 100_000
USER = Message("user", "hi")


@pytest.mark.parametrize(
    "request_",
    [
        Request((), prompt=HUGE),
        Request((Message("user", HUGE),)),
        Request((Message("assistant", "", (ToolCall("c", "f", f'{{"a": "{HUGE}"}}'),)), USER)),
        Request((USER,), tools=(Tool("f", HUGE, {}),)),
        # Far from huge, and still too long.
        Request((Message("user", HUGE[:1000]),)),
    ],
)
def test_what_is_too_long_is_refused_and_not_read_to_its_end(
    tmp_path: Path, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    engine, runner = make(tokenizer, "x")
    read, encode = [], tokenizer.encode

    def counted(text: str) -> list[int]:
        read.append(len(text))
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode", counted)
    with pytest.raises(ContextLengthError, match="shorten it"):
        run(engine, request_)
    assert sum(read) < 20_000
    assert runner.num_forwards == 0
