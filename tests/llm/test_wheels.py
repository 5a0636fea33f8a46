from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

from llm.models import wheels
from llm.models.download import Link
from llm.models.registry import Registry, WheelFile
from llm.models.store import ModelError, ModelStore, NetworkError
from llm.models.wheels import resolve_with_pip
from tests.llm.fake_web import model, sha


def test_pip_tells_where_a_wheel_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "ember_test_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "ember_test_model-1.0.dist-info"
        archive.writestr("ember_test_model/w.bin", b"weights")
        archive.writestr(f"{info}/METADATA", "Name: ember-test-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    link = resolve_with_pip("ember-test-model", "1.0")
    assert link.url == wheel.as_uri()
    assert link.sha256 in {None, sha(wheel.read_bytes())}

    source = WheelFile("ember-test-model", "1.0", "ember_test_model/w.bin")
    registry = Registry((model("m", ("w.bin", b"weights", (source,))),))
    store = ModelStore(tmp_path / "home", registry)
    assert (store.ensure("m") / "w.bin").read_bytes() == b"weights"
    assert wheel.exists()

    with pytest.raises(NetworkError, match=r"pip cannot find ember-test-model==2\.0"):
        resolve_with_pip("ember-test-model", "2.0")


def test_without_pip_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="ensurepip"):
        resolve_with_pip("a", "1")


def test_the_report_of_an_older_pip_is_understood() -> None:
    info = {"url": "https://h/w.whl", "archive_info": {"hash": "sha256=ab12"}}
    assert wheels._link({"install": [{"download_info": info}]}) == Link("https://h/w.whl", "ab12")
