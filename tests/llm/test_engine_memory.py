"""The engine where a slot cannot be made ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm.models.gguf import GgufFile
from llm.tokenizer import Tokenizer
from llm.types import Finished, FinishReason
from tests.llm.test_engine import ask, collect, make
from tests.llm.tiny import write_tiny_gguf


def test_no_memory_for_one_request_ends_that_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(GgufFile(write_tiny_gguf(tmp_path / "m.gguf")).tokenizer)
    engine, runner = make(tokenizer, "fine")

    async def main() -> list[tuple[str, Finished]]:
        ends = []
        # More often than there are slots: each must come back.
        for runner.full in (True, True, True, True, False):
            ends.append(await collect(engine.submit(ask())))
        return ends

    try:
        *failed, last = asyncio.run(main())
    finally:
        engine.close()
    assert all(end.reason is FinishReason.ERROR and "memory" in end.error for _, end in failed)
    assert last[0] == "fine"
    assert "no memory" in caplog.text
