"""Answers judged by rule: which questions there are, and what passes.

Pure. A question is one JSON object a line: `kind`, `turns` as in the training data, `tools` by
name, `accept` and `reject` (regular expressions, searched without case), `calls` expected.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm.adapt.data import read_dialogue, read_tools
from llm.types import Message, Tool, ToolCall

LONGEST_WORDS = 40
_MARKDOWN = re.compile(r"\*\*|^#|^\s*[-*] |```|\[[^\]]*\]\(|^\s*\d+\. ", re.MULTILINE)
_LETTERS = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked and what passes.

    calls: expected tool calls as (name, arguments), None where only the text counts.
    """

    kind: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    accept: tuple[str, ...]
    reject: tuple[str, ...]
    calls: tuple[tuple[str, Any], ...] | None


def read_questions(folder: Path, schema: Path) -> list[Question]:
    """All questions of the `*.jsonl` files in a folder; schema: definitions of the tools.

    Raises ValueError with file and line where one cannot be read, or there is none.
    """
    tools = read_tools(schema)
    questions = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                questions.append(_question(json.loads(line), tools))
            except (ValueError, KeyError, TypeError, re.error) as error:
                raise ValueError(f"{path}, line {number}: not a question ({error!r})") from error
    if not questions:
        raise ValueError(f"{folder} has no questions; it needs files named *.jsonl")
    return questions


def _question(entry: dict[str, Any], tools: dict[str, Tool]) -> Question:
    dialogue = read_dialogue(entry, tools)
    accept, reject = (tuple(entry.get(key, ())) for key in ("accept", "reject"))
    for pattern in (*accept, *reject):
        re.compile(pattern)
    calls = entry.get("calls")
    expected = None if calls is None else tuple((c["name"], c["arguments"]) for c in calls)
    return Question(entry["kind"], dialogue.messages, dialogue.tools, accept, reject, expected)


def passes(question: Question, text: str, calls: Sequence[ToolCall]) -> bool:
    """Whether an answer is right."""
    if question.calls is not None and not _same_calls(question.calls, calls):
        return False
    if not question.accept and question.calls is not None:
        return True

    def found(patterns: Sequence[str]) -> bool:
        return any(re.search(p, text, re.IGNORECASE) for p in patterns)

    return found(question.accept) and not found(question.reject)


def _same_calls(expected: Sequence[tuple[str, Any]], calls: Sequence[ToolCall]) -> bool:
    try:
        found = [(call.name, _plain(json.loads(call.arguments))) for call in calls]
    except ValueError:
        return False
    return found == [(name, _plain(arguments)) for name, arguments in expected]


def _plain(value: Any) -> Any:
    """Without what does not matter: case of texts and how a number is written."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, str):
        return value.strip().lower()
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def repeats_itself(text: str) -> bool:
    """Whether four words in a row come three times or more."""
    words = text.lower().split()
    spans = Counter(zip(*(words[i:] for i in range(4)), strict=False))
    return any(count >= 3 for count in spans.values())


def has_markdown(text: str) -> bool:
    """Whether there is anything that a voice cannot read out."""
    return bool(_MARKDOWN.search(text))


def is_foreign(text: str) -> bool:
    """Whether more than a third of the letters are not Latin."""
    letters = _LETTERS.findall(text)
    return sum(ord(letter) > 0x24F for letter in letters) * 3 > len(letters)


def is_too_long(text: str) -> bool:
    """Whether nobody would listen to it."""
    return len(text.split()) > LONGEST_WORDS
