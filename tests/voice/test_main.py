"""The `ember` command without models: usage, settings, errors and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from llm.models.errors import NetworkError
from voice import ask_cli, assistant
from voice.__main__ import app
from voice.audio import AudioError
from voice.config import Config


def ember(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_the_version_is_printed() -> None:
    result = ember("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("ember ")


def test_help_names_every_command_and_imports_no_model_library() -> None:
    code = (
        "import sys; from voice.__main__ import app; app(['--help'], standalone_mode=False);"
        "print({'torch', 'numpy', 'onnxruntime', 'ctranslate2', 'fastapi'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(name in result.stdout for name in ("ask", "up", "chat", "models"))
    assert result.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask"],
        ["ask", "q.wav", "--sample"],
        ["ask", "--sample", "--say", "Hi"],
        ["ask", "--say", " "],
        ["ask", "--sample", "--text", "-o", "a.wav"],
        ["ask", "--nonsense"],
        ["nonsense"],
        ["up", "--port", "many"],
        ["up", "--port", "70000"],
        ["--config", "missing.toml", "up"],
    ],
)
def test_wrong_usage_is_2_and_says_why(arguments: list[str]) -> None:
    result = ember(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The settings that `ember up` serves with."""
    from voice.gateway import app as gateway

    configs: list[Config] = []
    monkeypatch.setattr(gateway, "serve", lambda config: configs.append(config) or 0)
    for name in [name for name in os.environ if name.startswith("EMBER_")]:
        monkeypatch.delenv(name)
    return configs


def test_flags_win_over_the_environment_over_the_file_over_defaults(
    served: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "ember.toml"
    settings.write_text('port = 1\nhost = "::1"\nmax_answer_tokens = 5')
    monkeypatch.setenv("EMBER_PORT", "2")
    monkeypatch.setenv("EMBER_MAX_ANSWER_TOKENS", "6")
    assert ember("--config", str(settings), "up", "--port", "3").exit_code == 0
    assert served == [Config(port=3, host="::1", max_answer_tokens=6)]


def test_a_misspelt_setting_is_refused_with_the_nearest_name(
    served: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBER_PRT", "2")
    result = ember("up")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: unknown environment variable EMBER_PRT; did you mean EMBER_PORT?\n"
    )
    assert served == []


def test_the_exit_code_of_the_server_is_the_one_of_the_command(
    monkeypatch: pytest.MonkeyPatch, served: list[Config]
) -> None:
    from voice.gateway import app as gateway

    monkeypatch.setattr(gateway, "serve", lambda config: 1)
    assert ember("up").exit_code == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (AudioError("q.wav is empty"), 1, "error: q.wav is empty\n"),
        (NetworkError("no network,\n  try later"), 1, "error: no network, try later\n"),
        (OSError(98, "Address already in use"), 1, "error: [Errno 98] Address already in use\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_can_go_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr(ask_cli, "ask", fail)
    result = ember("ask", "--sample")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", line)


def test_our_own_faults_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise KeyError("ours")

    monkeypatch.setattr(ask_cli, "ask", fail)
    assert isinstance(ember("ask", "--sample").exception, KeyError)


def test_chat_talks_to_the_language_model_and_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm import chat_cli

    class FakeEngine:
        closed = False

        def close(self) -> None:
            self.closed = True

    engine, calls = FakeEngine(), []
    monkeypatch.setattr(assistant, "load_language_model", lambda config: engine)
    monkeypatch.setattr(chat_cli, "run_chat", lambda *args, **flags: calls.append((args, flags)))
    assert ember("chat").exit_code == 0
    ((args, flags),) = calls
    assert args[0] is engine
    assert flags == {
        "system_prompt": Config().system_prompt,
        "max_new_tokens": Config().max_answer_tokens,
    }
    assert engine.closed
