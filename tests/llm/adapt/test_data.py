"""Dialogues to batches: who said what, nothing lost, nothing on both sides of the split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.adapt.data import DATA, Example, batches, encode, endless, pad, read_dialogues, split
from llm.chat_template import ChatTemplate
from llm.models import ember_135m
from llm.models.gguf import GgufFile
from llm.tokenizer import Tokenizer
from tests.llm.tiny import write_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_tiny_gguf(tmp_path_factory.mktemp("data") / "model.gguf")
    return Tokenizer(GgufFile(path).tokenizer)


def test_the_shipped_dialogues_read_and_split() -> None:
    training, validation = split(read_dialogues())
    assert len(training) + len(validation) == 8052
    assert 0.03 < len(validation) / 8052 < 0.07
    first = [
        {next(m.content for m in d.messages if m.role == "user").lower() for d in side}
        for side in (training, validation)
    ]
    assert not first[0] & first[1]


def test_exactly_what_the_assistant_writes_is_spoken(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(ember_135m.TEMPLATE.read_text("utf-8"))
    for dialogue in read_dialogues()[::97]:
        example = encode(dialogue, tokenizer, template)
        pieces, piece = [], []
        for token, spoken in zip(example.ids, example.spoken, strict=True):
            if spoken:
                piece.append(token)
            elif piece:
                pieces.append(piece)
                piece = []
        pieces += [piece] if piece else []
        said = [m for m in dialogue.messages if m.role == "assistant"]
        assert len(pieces) == len(said)
        for message, ids in zip(said, pieces, strict=True):
            assert ids[-1] == tokenizer.id_of("<|im_end|>")
            text = tokenizer.decode(ids)
            assert text.startswith(message.content)
            assert text.count("<tool_call>") == len(message.tool_calls)
            for call in message.tool_calls:
                assert f'{{"name": "{call.name}", "arguments": {call.arguments}}}' in text


EXAMPLES = st.lists(
    st.integers(1, 90).map(lambda n: Example(tuple(range(1, n + 1)), (True,) * n)), min_size=1
)


@given(EXAMPLES, st.integers(64, 400), st.integers(0, 3))
def test_a_batch_holds_each_example_once(
    examples: list[Example], num_tokens: int, seed: int
) -> None:
    made = batches(examples, num_tokens, seed=seed)
    lengths = sorted(int(row.sum()) for batch in made for row in batch.spoken)
    assert lengths == sorted(len(e.ids) for e in examples)
    for batch in made:
        assert batch.ids.shape[1] % 16 == 0
        assert len(batch.ids) == 1 or batch.num_tokens <= num_tokens


def test_a_long_example_keeps_its_end() -> None:
    batch = pad([Example(tuple(range(50)), (False,) * 40 + (True,) * 10)], longest=32)
    assert batch.ids[0].tolist() == list(range(18, 50))
    assert batch.spoken[0].tolist() == [False] * 22 + [True] * 10


def test_batches_go_on_where_they_stopped() -> None:
    examples = [Example((n,) * n, (True,) * n) for n in range(1, 40)]
    whole = endless(examples, 64)
    all_of_them = [next(whole).ids.tolist() for _ in range(40)]
    for start in (0, 1, 17, 39):
        assert next(endless(examples, 64, start)).ids.tolist() == all_of_them[start]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"turns": []}',
        '{"turns": [{"role": "assistant", "content": "x"}]}',
        '{"tools": ["no_such_tool"], "turns": [{"role": "user", "content": "x"}]}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"turns": [{"role": "user", "content": "x"}]})
    (tmp_path / "own.jsonl").write_text(f"{good}\n{line}\n")
    (tmp_path / "tools_schema.json").write_bytes((DATA / "tools_schema.json").read_bytes())
    with pytest.raises(ValueError, match=r"own\.jsonl, line 2"):
        read_dialogues(tmp_path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no dialogues"):
        read_dialogues(tmp_path)
