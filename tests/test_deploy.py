"""What deploy/ promises: not root, models on a volume, loopback only, a command that exists."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_readme import unknown_words

DEPLOY = Path(__file__).parent.parent / "deploy"


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined and comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (w, rest) for w, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


@pytest.fixture
def final_stage() -> list[tuple[str, str]]:
    """The instructions of the image that runs."""
    steps = instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert [word for word, _ in steps].count("FROM") == 2
    last = max(i for i, (word, _) in enumerate(steps) if word == "FROM")
    return steps[last:]


@pytest.fixture
def service() -> dict[str, Any]:
    """The one service of compose.yaml."""
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert list(compose["services"]) == ["ember"]
    assert "models" in compose["volumes"]
    ember: dict[str, Any] = compose["services"]["ember"]
    return ember


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "ember.service", encoding="utf-8")
    return parser


def test_the_image_does_not_run_as_root(final_stage: list[tuple[str, str]]) -> None:
    (user,) = [rest for word, rest in final_stage if word == "USER"]
    assert user.isdecimal(), "a number, so that Kubernetes can check runAsNonRoot"
    assert user != "0"


def test_the_image_copies_only_the_built_environment(final_stage: list[tuple[str, str]]) -> None:
    copies = [rest for word, rest in final_stage if word in {"COPY", "ADD"}]
    assert copies == ["--from=build /opt/ember /opt/ember"]


def test_the_models_are_on_a_volume_that_the_user_may_write(
    final_stage: list[tuple[str, str]],
) -> None:
    assert ("VOLUME", "/models") in final_stage
    assert any(word == "ENV" and "EMBER_HOME=/models" in rest for word, rest in final_stage)
    assert any(word == "RUN" and "chown ember:ember /models" in rest for word, rest in final_stage)


def test_the_image_serves_and_is_checked_on_the_port_that_it_exposes(
    final_stage: list[tuple[str, str]],
) -> None:
    steps = dict(final_stage)
    command = json.loads(steps["CMD"])
    assert unknown_words(shlex.join(command)) == []
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert command[command.index("--port") + 1] == steps["EXPOSE"]
    assert f"http://127.0.0.1:{steps['EXPOSE']}/readyz" in steps["HEALTHCHECK"]


def test_the_build_copies_all_that_the_wheel_is_made_of() -> None:
    steps = instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    copied = {name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]}
    assert {"pyproject.toml", "README.md", "LICENSE", "kernels", "llm", "voice", "web"} <= copied
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:].removesuffix("/**") for line in ignored if line.startswith("!")}
    assert kept == {name for name in copied if not name.startswith(("/", "--"))}


def test_compose_publishes_on_the_loopback_address_only(service: dict[str, Any]) -> None:
    assert service["ports"] == ["127.0.0.1:8080:8080"]


def test_compose_locks_the_container_down(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["volumes"] == ["models:/models"], "the only place that may be written"
    assert [mount.split(":")[0] for mount in service["tmpfs"]] == ["/tmp"]


def test_compose_builds_the_dockerfile_beside_it(service: dict[str, Any]) -> None:
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    declared = re.findall(r"^ARG (\w+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert set(build["args"]) <= set(declared)


def test_the_unit_runs_an_ember_command_on_the_loopback_address(
    unit: configparser.ConfigParser,
) -> None:
    command = unit["Service"]["ExecStart"]
    assert unknown_words(command) == []
    assert "--host 127.0.0.1" in command


def test_the_unit_keeps_its_models_in_its_state_directory(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert service["Environment"] == f"EMBER_HOME=/var/lib/{service['StateDirectory']}"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("CapabilityBoundingSet", ""),
        ("SystemCallArchitectures", "native"),
    ],
)
def test_the_unit_is_locked_down(unit: configparser.ConfigParser, setting: str, value: str) -> None:
    assert unit["Service"][setting] == value


def test_the_unit_stops_in_bounded_time(unit: configparser.ConfigParser) -> None:
    assert 0 < int(unit["Service"]["TimeoutStopSec"]) <= 30
