"""The wheel: built once, opened, and held against what an installation needs."""

from __future__ import annotations

import email.message
import email.parser
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"voice", "llm", "kernels"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this source tree, built without touching it or the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    result = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    return email.parser.Parser().parsestr(wheel.read(name).decode())


def installed_files(folder: str) -> set[str]:
    files = (f for f in (ROOT / folder).rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    return {str(f.relative_to(ROOT)) for f in files}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile, package: str) -> None:
    assert installed_files(package) <= set(wheel.namelist())


def test_the_page_is_in_the_wheel_under_voice_web(wheel: zipfile.ZipFile) -> None:
    page = {f"voice/{name}" for name in installed_files("web")}
    assert "voice/web/index.html" in page
    assert page <= set(wheel.namelist())


def test_nothing_else_is_installed(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == PACKAGES


OUR_OWN = {
    "llm/models/ember_135m/speak.safetensors",
    "llm/models/ember_135m/draft.safetensors",
    "llm/adapt/data/tools.jsonl",
}
"""Adapters and dialogues that were made here and are nowhere else, 40 MB at most."""


def test_no_model_but_our_adapters_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Models are fetched and verified on first use; another large file here is a mistake."""
    large = {e.filename: e.file_size for e in wheel.infolist() if e.file_size > 1_000_000}
    assert set(large) <= OUR_OWN
    assert sum(large.values()) < 40_000_000


def test_the_metadata_say_what_it_is(metadata: email.message.Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["Name"] == project["name"]
    assert metadata["Version"] == project["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    required = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert len(required) == len(project["dependencies"])


def test_the_licence_is_in_the_wheel_and_whole(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith("/LICENSE")]
    text = wheel.read(name).decode()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_ember_command_is_installed(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "ember = voice.__main__:main" in wheel.read(name).decode()
