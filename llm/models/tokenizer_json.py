"""Reads the tokenizer and the chat template of a Hugging Face folder.

In: tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja. Out: a
`Tokenizer` with the engine's guarantees: user text can never produce a control token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.pre_tokenizers import ByteLevel

from llm.models.checkpoint import CheckpointError, TokenizerData
from llm.models.safetensors import read_json
from llm.tokenizer import Tokenizer


class FolderTokenizer(Tokenizer):
    """A byte-level BPE tokenizer that splits text as its tokenizer.json says.

    special_tokens: ids of the control tokens by name. visible: ids and names of those that are
    text when the model writes them, such as the tags of a tool call.
    """

    def __init__(
        self, data: TokenizerData, definition: Mapping[str, Any], visible: Mapping[int, str]
    ) -> None:
        super().__init__(data)
        self.special_tokens = {data.tokens[i]: i for i in data.special_ids}
        self._visible = {index: name.encode() for index, name in visible.items()}
        # Without its added tokens the library takes what looks like one for plain text.
        plain = dict(
            definition, added_tokens=[], truncation=None, padding=None, post_processor=None
        )
        self._library = LibraryTokenizer.from_str(json.dumps(plain))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; what looks like a control token stays text."""
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text: UTF-8, possibly part of a character; none if control."""
        return self._visible.get(token_id) or super().token_bytes(token_id)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a whole sequence, control tokens left out."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


def read_tokenizer(
    folder: Path, vocab_size: int, variables: Mapping[str, bool]
) -> tuple[FolderTokenizer, str]:
    """The folder's tokenizer and its chat template.

    vocab_size: rows of the model's embedding; ids without a token become control tokens that
    nothing produces. variables: what the template is to find set besides its own tokens.
    Raises CheckpointError where a file is missing or of another kind.
    """
    definition = read_json(folder / "tokenizer.json")
    model = definition.get("model") or {}
    if model.get("type") != "BPE" or "ByteLevel" not in json.dumps(definition.get("decoder")):
        raise CheckpointError(f"{folder}: only byte-level BPE tokenizers are read")
    added = {int(token["id"]): token for token in definition.get("added_tokens", [])}
    names = {int(index): name for name, index in model["vocab"].items()}
    if unknown := {c for i, name in names.items() if i not in added for c in name} - _ALPHABET:
        raise CheckpointError(f"{folder}: the vocabulary is not byte-level: {sorted(unknown)[:5]}")
    names |= {index: str(token["content"]) for index, token in added.items()}
    if (largest := max(names)) >= vocab_size:
        raise CheckpointError(
            f"{folder}: token {largest} ({names[largest]}) is outside of the model's vocabulary "
            f"of {vocab_size}"
        )
    holes = set(range(vocab_size)) - set(names)
    names |= {index: f"<|unused_{index}|>" for index in holes}
    settings = read_json(folder / "tokenizer_config.json")
    data = TokenizerData(
        tokens=tuple(names[index] for index in range(vocab_size)),
        merges=(),
        special_ids=frozenset(added) | holes,
        eos_id=next((i for i in added if names[i] == _content(settings.get("eos_token"))), -1),
        chat_template=_template(folder, settings, variables),
    )
    visible = {i: names[i] for i, token in added.items() if not token.get("special", True)}
    return FolderTokenizer(data, definition, visible), data.chat_template


_ALPHABET = frozenset(ByteLevel.alphabet())


def _content(token: Any) -> str | None:
    """A token in tokenizer_config.json is its text or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token


def named_token(folder: Path, kind: str) -> str | None:
    """The token that tokenizer_config.json names as its `kind`, such as mask_token."""
    return _content(read_json(folder / "tokenizer_config.json").get(kind))


def _template(folder: Path, settings: Mapping[str, Any], variables: Mapping[str, bool]) -> str:
    file = folder / "chat_template.jinja"
    source = file.read_text("utf-8") if file.exists() else settings.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    if not isinstance(source, str):
        raise CheckpointError(f"{folder} has no chat template; use the instruct or chat checkpoint")
    values: dict[str, object] = dict(variables)
    for kind in ("bos_token", "eos_token", "pad_token"):
        if (name := _content(settings.get(kind))) is not None:
            values[kind] = name
    # JSON's strings and booleans are Jinja's too.
    return (
        "".join(f"{{% set {k} = {json.dumps(v, ensure_ascii=False)} %}}" for k, v in values.items())
        + source
    )
