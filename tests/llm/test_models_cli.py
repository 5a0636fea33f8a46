from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from llm import models_cli
from llm.config import ConfigError
from llm.models.store import ModelStore, UnknownModelError
from llm.models_cli import models_app, pull_with_progress
from tests.llm.fake_web import Web, parts, serving, store_at


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture
def store(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    store = store_at(tmp_path, web)
    monkeypatch.setattr(models_cli, "open_store", lambda: store)
    return store


def ember_models(*arguments: str) -> Result:
    return CliRunner().invoke(models_app, list(arguments))


def test_pull_list_verify_path(store: ModelStore) -> None:
    pulled = ember_models("pull", "plain")
    assert (pulled.exit_code, pulled.stdout) == (0, "")
    assert "pulling plain (one): 600.2 kB\nplain is ready in" in pulled.stderr
    again = ember_models("pull", "plain")
    assert (again.exit_code, again.output) == (0, "")
    rows = [line.split("\t") for line in ember_models("list").stdout.splitlines()]
    assert rows[0] == ["plain", "llm", "MIT", "600.0 kB", "ready"]
    assert [row[4] for row in rows[1:]] == ["not here"] * 3
    assert ember_models("path", "plain").stdout.strip() == str(store.path("plain"))
    checked = ember_models("verify")
    assert (checked.exit_code, checked.stdout) == (0, "plain\tright\n")


def test_pull_without_a_name_brings_the_default_set(store: ModelStore) -> None:
    # The last default model of the fake registry does not exist, the ones before it do.
    result = ember_models("pull")
    assert result.exit_code == 1
    assert store.is_complete("plain")
    assert store.is_complete("joined")


def test_verify_names_what_is_wrong(store: ModelStore) -> None:
    folder = store.ensure("plain")
    (folder / "small.json").unlink()
    assert "incomplete" in ember_models("list").stdout
    result = ember_models("verify")
    assert (result.exit_code, result.stdout) == (1, "plain\tdamaged\n")
    assert result.stderr.startswith("error: ")
    assert "small.json is missing" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("pull", "plain", "plane"), 2, "unknown model 'plane'; did you mean 'plain'?"),
        (("verify", "plane"), 2, "unknown model"),
        (("path", "plane"), 2, "unknown model"),
        (("path", "plain"), 1, "run `ember models pull plain`"),
        (("pull", "absent"), 1, "none.bin"),
    ],
)
def test_errors_are_one_line(
    store: ModelStore, web: Web, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = ember_models(*arguments)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert message in result.stderr.splitlines()[-1]
    assert result.stdout == ""
    assert not store.is_complete("plain")


def test_a_broken_registry_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> ModelStore:
        raise ConfigError("model 'm' lacks 'kind'")

    monkeypatch.setattr(models_cli, "open_store", broken)
    result = ember_models("list")
    assert (result.exit_code, result.stderr) == (1, "error: model 'm' lacks 'kind'\n")


def test_ctrl_c_says_how_to_go_on(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelStore, "ensure", interrupted)
    result = ember_models("pull", "plain")
    assert result.exit_code == 130
    assert "go on" in result.stderr


def test_nothing_is_pulled_if_one_name_is_unknown(store: ModelStore, web: Web) -> None:
    with pytest.raises(UnknownModelError):
        pull_with_progress(store, ["plain", "plane"])
    assert web.asked == []


def test_a_terminal_sees_bars(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminal(*, stderr: bool) -> Console:
        assert stderr
        return Console(file=sys.stderr, force_terminal=True, width=100)

    monkeypatch.setattr(models_cli, "Console", terminal)
    pull_with_progress(store, ["plain", "plain"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "plain (one)" in captured.err
    assert "600.2/600.2 kB" in captured.err
    assert parts(store.home) == []
