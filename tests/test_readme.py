"""The README against the program: every command in it is run by CI or says why not, and exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import voice.wire
from voice.__main__ import app
from voice.config import Config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI_RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
COMMAND_LANGUAGES = {"", "sh", "bash", "shell", "console", "python", "py"}


def load_readme_blocks() -> ModuleType:
    """The very module with which .ci/run takes its commands from the README."""
    path = ROOT / ".ci" / "readme_blocks.py"
    spec = importlib.util.spec_from_file_location("readme_blocks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_blocks"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


READER = load_readme_blocks()


def unmarked(markdown: str) -> list[str]:
    """First lines of the blocks that may hold commands and carry no known mark."""
    return [
        block.text.partition("\n")[0]
        for block in READER.blocks(markdown)
        if block.language in COMMAND_LANGUAGES and block.mark not in {"ci", "example", "output"}
    ]


def commands(markdown: str) -> Iterator[str]:
    """Every `ember ...` in code, in blocks and inline, each up to the end of the command."""
    code = [b.text for b in READER.blocks(markdown) if b.mark not in {"output", None}]
    code += re.findall(
        r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", markdown, flags=re.M | re.S)
    )
    for text in code:
        for part in re.split(r"&&|;|\n|\|", text):
            if re.match(r"\s*(\S*/)?ember(\s|$)", part):
                yield part.split("#")[0].strip()


def unknown_words(command: str) -> list[str]:
    """The subcommands and flags in an `ember` command line that the program does not have."""
    words = iter(shlex.split(command)[1:])
    node = typer.main.get_command(app)
    unknown = []
    for word in words:
        options = {name: p for p in node.params for name in (*p.opts, *p.secondary_opts)}
        flag, equals, _ = word.partition("=")
        if flag == "--help":
            break
        if word.startswith("-") and flag not in options:
            unknown.append(word)
        elif word.startswith("-"):
            if not equals and not getattr(options[flag], "is_flag", False):
                next(words)  # the option's value
        elif subcommands := getattr(node, "commands", None):
            if word not in subcommands:
                return [*unknown, word]
            node = subcommands[word]
    return unknown


def test_every_block_of_commands_is_run_by_ci_or_says_why_not() -> None:
    assert unmarked(README) == []


def test_an_unmarked_block_is_found() -> None:
    assert unmarked("text\n\n```sh\nember up\n```\n") == ["ember up"]
    assert unmarked("<!-- ci: run -->\n```sh\nember up\n```\n") == []
    assert unmarked("<!-- note: run -->\n```sh\nember up\n```\n") == ["ember up"]


def test_every_block_marked_for_ci_is_named_in_the_ci_script() -> None:
    names = {block.note for block in READER.blocks(README) if block.mark == "ci"}
    named = set(re.findall(r"readme_blocks\.py (\w+)|readme (\w+)", CI_RUN))
    assert names == {a or b for a, b in named}


@pytest.mark.parametrize("name", ["run", "test"])
def test_each_of_the_two_commands_is_one_line(name: str) -> None:
    assert READER.block_for_ci(README, name).count("\n") == 1


def test_a_missing_or_doubled_block_is_an_error() -> None:
    block = "<!-- ci: run -->\n```sh\nember up\n```\n"
    assert READER.block_for_ci(block, "run") == "ember up\n"
    with pytest.raises(KeyError, match="0 blocks"):
        READER.block_for_ci(block, "test")
    with pytest.raises(KeyError, match="2 blocks"):
        READER.block_for_ci(block + block, "run")


def test_every_ember_command_and_flag_exists() -> None:
    found = list(commands(README))
    assert len(found) > 5
    assert {c: unknown_words(c) for c in found if unknown_words(c)} == {}


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("ember up", []),
        (".venv/bin/ember ask --sample -o answer.wav", []),
        ("ember --help", []),
        ("ember dance", ["dance"]),
        ("ember ask --loudly", ["--loudly"]),
        ("ember models burn", ["burn"]),
        ("ember --config ember.toml up", []),
        ("ember --config=ember.toml jump", ["jump"]),
    ],
)
def test_a_made_up_word_is_found(command: str, unknown: list[str]) -> None:
    assert unknown_words(command) == unknown


def test_commands_are_found_in_blocks_and_inline() -> None:
    block = "<!-- example: x -->\n```sh\na && .venv/bin/ember ask x\n```\n"
    text = "`ember up`, `EMBER_HOME`, `pip`\n\n" + block
    assert sorted(commands(text)) == [".venv/bin/ember ask x", "ember up"]


def required_packages() -> list[str]:
    everything = [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]
    return sorted({re.split(r"[^\w.-]", requirement)[0] for requirement in everything})


@pytest.mark.parametrize("package", required_packages())
def test_every_dependency_has_its_reason(package: str) -> None:
    assert re.search(rf"^\|[^|]*`{re.escape(package)}`[^|]*\|[^|]{{15,}}\|", README, re.MULTILINE)


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_every_extra_is_named(extra: str) -> None:
    assert f"`{extra}`" in README


REGISTRY = tomllib.loads((ROOT / "llm" / "models" / "registry.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", sorted(REGISTRY["models"]))
def test_every_model_has_its_row_and_its_licence(model: str) -> None:
    licence = re.escape(REGISTRY["models"][model]["licence"])
    assert re.search(rf"^\| `{re.escape(model)}` \| [^|]+ \| {licence} \|$", README, re.MULTILINE)


@pytest.mark.parametrize("field", fields(Config), ids=lambda field: field.name)
def test_every_setting_has_its_row_and_its_default(field: Field[Any]) -> None:
    row = re.search(rf"^\| `{field.name}` \| (.+?) \| .+ \|$", README, re.MULTILINE)
    assert row is not None
    assert row[1] == (
        f"`{field.default}`" if len(str(field.default)) < 40 else "see `voice/config.py`"
    )


def test_the_protocol_table_is_the_code() -> None:
    assert voice.wire.__doc__ is not None
    row = re.compile(r"^\| (client|server) \| `([\w.]+)` \|([^|]*)\|", re.MULTILINE)
    in_code = row.findall(voice.wire.__doc__.replace("\\\n", ""))
    assert len(in_code) > 10
    assert row.findall(README) == in_code


def test_every_folder_and_file_named_in_the_tree_exists() -> None:
    (tree,) = [b.text for b in READER.blocks(README) if b.note == "the file tree"]
    paths = re.findall(r"^(\S+)  ", tree, re.MULTILINE)
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_no_figure_is_left_open() -> None:
    assert re.findall(r"FIGURE:.*", README) == []


def test_the_python_example_is_python() -> None:
    compile(READER.block_for_ci(README, "openai"), "README.md", "exec")


def test_the_extractor_prints_a_block_and_fails_on_an_unknown_name() -> None:
    program = [sys.executable, str(ROOT / ".ci" / "readme_blocks.py")]
    found = subprocess.run([*program, "test"], capture_output=True, text=True, check=True)
    assert found.stdout == READER.block_for_ci(README, "test")
    missing = subprocess.run([*program, "nothing"], capture_output=True, text=True, check=False)
    assert missing.returncode != 0


def test_the_ci_script_can_be_executed() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "set -euo pipefail" in CI_RUN
