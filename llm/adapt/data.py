"""Dialogues in JSON lines to padded batches of token ids.

In: files as the README beside the data describes them. Out: batches that say which tokens the
assistant wrote. Knows nothing of models or losses.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm.chat_template import ChatTemplate
from llm.tokenizer import Tokenizer
from llm.types import Message, Tool, ToolCall

DATA = Path(__file__).with_name("data")
VALIDATION_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What was said, and the tools that were on offer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def is_validation(self) -> bool:
        """Chosen by what the user says first, so that a wording never stands on both sides."""
        first = next(m.content for m in self.messages if m.role == "user")
        digest = hashlib.sha256(first.lower().encode()).digest()
        return digest[0] / 256 < VALIDATION_SHARE


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a dialogue; spoken: which of them the assistant wrote, its end included."""

    ids: tuple[int, ...]
    spoken: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """ids: int64 [sequences, length], padded with 0 at the end; spoken: bool, of the same shape."""

    ids: Tensor
    spoken: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens, padding included."""
        return self.ids.numel()


def read_tools(path: Path) -> dict[str, Tool]:
    """OpenAI tool definitions, by name."""
    functions = [entry["function"] for entry in json.loads(path.read_text("utf-8"))]
    return {f["name"]: Tool(f["name"], f["description"], f["parameters"]) for f in functions}


def read_dialogues(folder: Path = DATA) -> list[Dialogue]:
    """All dialogues of the `*.jsonl` files in a folder; tools from its tools_schema.json.

    Raises ValueError with file and line where one cannot be read.
    """
    schema = folder / "tools_schema.json"
    tools = read_tools(schema) if schema.is_file() else {}
    dialogues = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                dialogues.append(read_dialogue(json.loads(line), tools))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a dialogue ({error!r})") from error
    if not dialogues:
        raise ValueError(f"{folder} has no dialogues; it needs files named *.jsonl")
    return dialogues


def read_dialogue(entry: dict[str, Any], tools: dict[str, Tool]) -> Dialogue:
    """A dialogue from its JSON object. Raises KeyError, TypeError or ValueError."""
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    offered = tuple(tools[name] for name in entry.get("tools", ()))
    messages = tuple(_message(turn) for turn in entry["turns"])
    if not any(message.role == "user" for message in messages):
        raise ValueError("no turn of the user")
    return Dialogue(messages, offered, tuple(entry.get("tags", ())))


def _message(turn: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall("", call["name"], json.dumps(call["arguments"], ensure_ascii=False))
        for call in turn.get("tool_calls", ())
    )
    return Message(turn["role"], turn.get("content") or "", calls)


def encode(dialogue: Dialogue, tokenizer: Tokenizer, template: ChatTemplate) -> Example:
    """The dialogue as the model sees it when it answers, turn by turn."""
    ids = template.encode(dialogue.messages, tokenizer, dialogue.tools, answer_follows=False)
    opening = [tokenizer.id_of("<|im_start|>"), *tokenizer.encode("assistant\n")]
    end = tokenizer.id_of("<|im_end|>")
    spoken, speaking = [], False
    for index, token in enumerate(ids):
        spoken.append(speaking)
        has_opened = ids[index + 1 - len(opening) : index + 1] == opening
        speaking = token != end if speaking else has_opened
    return Example(tuple(ids), tuple(spoken))


def batches(
    examples: Sequence[Example], num_tokens: int, *, seed: int, longest: int = 512
) -> list[Batch]:
    """Batches of about num_tokens each in random order; examples of like length share one.

    Examples longer than `longest` keep their end, where the assistant speaks.
    """
    order = random.Random(seed)
    shuffled = sorted(
        order.sample(list(examples), len(examples)), key=lambda e: -(-len(e.ids) // 16)
    )
    groups: list[list[Example]] = [[]]
    for example in shuffled:
        width = min(longest, -(-len(example.ids) // 16) * 16)
        if groups[-1] and width * (len(groups[-1]) + 1) > num_tokens:
            groups.append([])
        groups[-1].append(example)
    order.shuffle(groups)
    return [pad(group, longest) for group in groups]


def pad(examples: Sequence[Example], longest: int = 512) -> Batch:
    """Examples side by side, padded to a multiple of 16 so that few shapes occur."""
    width = min(longest, -(-max(len(e.ids) for e in examples) // 16) * 16)
    ids = torch.zeros(len(examples), width, dtype=torch.int64)
    spoken = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        length = min(len(example.ids), width)
        ids[row, :length] = torch.tensor(example.ids[-length:])
        spoken[row, :length] = torch.tensor(example.spoken[-length:])
    return Batch(ids, spoken)


def endless(examples: Sequence[Example], num_tokens: int, start: int = 0) -> Iterator[Batch]:
    """Batches of one epoch after the other, from batch number `start` on."""
    epoch = 0
    while True:
        of_epoch = batches(examples, num_tokens, seed=epoch)
        yield from of_epoch[start:]
        start = max(0, start - len(of_epoch))
        epoch += 1


def split(dialogues: Iterable[Dialogue]) -> tuple[list[Dialogue], list[Dialogue]]:
    """(for training, for validation)."""
    training: list[Dialogue] = []
    validation: list[Dialogue] = []
    for dialogue in dialogues:
        (validation if dialogue.is_validation else training).append(dialogue)
    return training, validation
