"""The README's fenced blocks and how each is marked; as a program, prints one that CI runs.

A mark is an HTML comment on the line before the fence: `ci: NAME` for a block that .ci/run runs,
`example: REASON` or `output: REASON` for one that it cannot.

    python3 .ci/readme_blocks.py NAME
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>\w+): (?P<note>[^\n]+?) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; mark and note are None where no comment stands before it."""

    language: str
    mark: str | None
    note: str | None
    text: str


def blocks(markdown: str) -> list[Block]:
    """All fenced blocks of a Markdown text, in order."""
    return [Block(**found.groupdict()) for found in BLOCK.finditer(markdown)]


def block_for_ci(markdown: str, name: str) -> str:
    """The text of the one block marked `ci: name`; KeyError if there is not exactly one."""
    found = [b.text for b in blocks(markdown) if (b.mark, b.note) == ("ci", name)]
    if len(found) != 1:
        raise KeyError(f"README.md has {len(found)} blocks marked <!-- ci: {name} -->, not 1")
    return found[0]


if __name__ == "__main__":
    sys.stdout.write(block_for_ci(README.read_text(encoding="utf-8"), sys.argv[1]))
