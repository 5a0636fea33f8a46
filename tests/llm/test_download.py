from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.models.download import Link, fetch
from llm.models.store import ModelStore, NetworkError, WrongHashError
from tests.llm.fake_web import (
    BIG,
    MODELS,
    ONE_BIG,
    SMALL,
    Web,
    parts,
    serving,
    sha,
    store_at,
    wheel_of,
)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.mark.parametrize("hashed", [True, False])
def test_a_dropped_connection_is_resumed(tmp_path: Path, web: Web, hashed: bool) -> None:
    web.hang_up_after = 400_000
    store = store_at(tmp_path, web, hashed=hashed)
    with pytest.raises(NetworkError, match="broke off"):
        store.ensure("plain")
    assert [p.stat().st_size for p in parts(tmp_path)] == [400_000]
    web.hang_up_after = None
    store.ensure("plain")
    assert web.asked[1:] == [("/one.whl", "bytes=400000-")]
    assert store.verify("plain") == []


@pytest.mark.parametrize("flaw", ["no ranges", "another range"])
def test_a_server_without_ranges_is_asked_from_the_start(
    tmp_path: Path, web: Web, flaw: str
) -> None:
    # Without a promised hash, nothing but the server's answer tells where its bytes belong.
    link, part = Link(f"{web.url}/one.whl", None), tmp_path / "part"
    whole = web.files["one.whl"]
    part.write_bytes(whole[:400_000])
    web.knows_ranges = flaw != "no ranges"
    web.wrong_range = flaw == "another range"
    fetch(link, part, lambda *_: None)
    assert part.read_bytes() == whole


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_part_with_nothing_to_resume_is_sorted_out(
    tmp_path: Path, web: Web, hashed: bool, extra: bytes
) -> None:
    store = store_at(tmp_path, web, hashed=hashed)
    store.downloads.mkdir()
    part = store.downloads / store.link(ONE_BIG).part_name
    part.write_bytes(web.files["one.whl"] + extra)
    store.ensure("plain")
    assert store.verify("plain") == []
    if hashed and not extra:
        assert web.asked == [], "a whole part needs no server"


def test_a_part_of_other_content_is_not_continued_twice(tmp_path: Path, web: Web) -> None:
    store = store_at(tmp_path, web)
    store.downloads.mkdir()
    (store.downloads / store.link(ONE_BIG).part_name).write_bytes(b"garbage")
    store.ensure("plain")
    assert [asked for _, asked in web.asked] == ["bytes=7-", None]
    assert store.verify("plain") == []


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize(
    "lie",
    [wheel_of(big=BIG[::-1], small=SMALL), wheel_of(small=SMALL), BIG, b"PK", b""],
    ids=["other content", "file absent", "no zip", "stump", "nothing"],
)
def test_a_lying_server_leaves_nothing(tmp_path: Path, web: Web, hashed: bool, lie: bytes) -> None:
    store = store_at(tmp_path, web, hashed=hashed)
    truth, web.files["one.whl"] = web.files["one.whl"], lie
    with pytest.raises(WrongHashError) as caught:
        store.ensure("plain")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.rglob("*.*")) == [], "neither a model's file nor a part"
    web.files["one.whl"] = truth
    store.ensure("plain")
    assert store.verify("plain") == []


@pytest.mark.parametrize(("status", "message"), [(404, "404"), (503, "503")])
def test_a_refusing_server_is_a_network_error(
    tmp_path: Path, web: Web, status: int, message: str
) -> None:
    web.status = status
    with pytest.raises(NetworkError, match=message):
        store_at(tmp_path, web).ensure("plain")


def test_an_unreachable_server_is_a_network_error(tmp_path: Path) -> None:
    # Port 1 of this machine: nobody listens there.
    store = ModelStore(tmp_path, MODELS, lambda *_: Link("http://u:secret@127.0.0.1:1/w?k=s", None))
    with pytest.raises(NetworkError, match="cannot reach") as caught:
        store.ensure("plain")
    assert "secret" not in str(caught.value)
    assert "k=s" not in str(caught.value)


def test_certificates_that_cannot_be_read_are_named(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "none.pem"))
    with pytest.raises(NetworkError, match=r"none\.pem"):
        store_at(tmp_path, web).ensure("plain")


def assert_only_whole_files(home: Path, name: str) -> None:
    hashes = {file.name: file.sha256 for file in MODELS.find(name).files}
    for path in (home / "models").rglob("*"):
        if path.is_file():
            assert sha(path.read_bytes()) == hashes[path.name]


interruptions = st.one_of(
    st.tuples(st.just("hang up"), st.integers(0, 650_000), st.booleans()),
    st.tuples(st.just("ctrl-c"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("garbage in the part"), st.integers(0, 650_000), st.booleans()),
)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["plain", "joined"]),
    hashed=st.booleans(),
    steps=st.lists(interruptions, max_size=4),
)
def test_whatever_interrupts_the_end_is_right(
    name: str,
    hashed: bool,
    steps: list[tuple[str, int, bool]],
) -> None:
    with serving() as web, tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        store = store_at(home, web, hashed=hashed)
        for step in steps:
            if store.is_complete(name):
                break
            _interrupted_pull(store, name, web, step)
            assert_only_whole_files(home, name)
        _pull_to_the_end(store, name)
        assert store.verify(name) == []
        assert_only_whole_files(home, name)
        assert parts(home) == []


def _interrupted_pull(store: ModelStore, name: str, web: Web, step: tuple[str, int, bool]) -> None:
    what, amount, web.knows_ranges = step
    calls = iter(range(1, 1000))

    def on_progress(*_: object) -> None:
        if what == "ctrl-c" and next(calls) == amount:
            raise KeyboardInterrupt

    if what == "garbage in the part":
        store.downloads.mkdir(exist_ok=True)
        (store.downloads / store.link(ONE_BIG).part_name).write_bytes(bytes(amount))
        return
    web.hang_up_after = amount if what == "hang up" else None
    with contextlib.suppress(KeyboardInterrupt, NetworkError, WrongHashError):
        store.ensure(name, on_progress)
    web.hang_up_after = None


def _pull_to_the_end(store: ModelStore, name: str) -> None:
    try:
        store.ensure(name)
    except WrongHashError:
        # Garbage in a part whose hash nobody promised is found only at the end, and thrown away.
        store.ensure(name)
