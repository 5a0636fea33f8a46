"""A web for the tests of models: wheels served by a server that can be made to misbehave."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from llm.models.download import Link
from llm.models.registry import (
    HubFile,
    Model,
    ModelFile,
    ModelKind,
    Registry,
    Source,
    WheelFile,
)
from llm.models.store import ModelStore

# Larger than two chunks of a download, so that a connection can drop between chunks.
BIG = random.Random(1).randbytes(600_000)
SMALL = b'{"small": true}'


def wheel_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"pkg/{name}"), content)
    return out.getvalue()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Web:
    """A server that can hang up early, refuse ranges and send something else."""

    files: dict[str, bytes] = field(default_factory=dict)
    hang_up_after: int | None = None
    knows_ranges: bool = True
    wrong_range: bool = False
    status: int | None = None
    before_answer: threading.Event | None = None
    was_asked: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked_range = handler.headers.get("Range")
        self.asked.append((handler.path, asked_range))
        self.was_asked.set()
        if self.before_answer is not None:
            assert self.before_answer.wait(10)
        content = self.files.get(handler.path.lstrip("/"))
        start = int(asked_range[6:-1]) if asked_range and self.knows_ranges else 0
        if self.status or content is None:
            handler.send_error(self.status or 404)
        elif start and start >= len(content):
            handler.send_error(416)
        else:
            handler.send_response(206 if start else 200)
            if start:
                start = 0 if self.wrong_range else start
                handler.send_header("Content-Range", f"bytes {start}-/{len(content)}")
            handler.send_header("Content-Length", str(len(content) - start))
            handler.end_headers()
            # The puller may hang up first.
            with suppress(ConnectionError):
                handler.wfile.write(content[start:][: self.hang_up_after])


@contextmanager
def serving() -> Iterator[Web]:
    """A web of two wheels on this machine, until the block ends."""
    web = Web({"one.whl": wheel_of(big=BIG, small=SMALL), "two.whl": wheel_of(rest=b"rest")})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        web.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()


def model(name: str, *files: tuple[str, bytes, tuple[Source, ...]]) -> Model:
    return Model(
        name,
        ModelKind.LLM,
        "MIT",
        "",
        True,
        tuple(ModelFile(n, len(content), sha(content), sources) for n, content, sources in files),
    )


ONE_BIG = WheelFile("one", "1", "pkg/big")
MODELS = Registry(
    (
        model(
            "plain",
            ("big.bin", BIG, (ONE_BIG,)),
            ("small.json", SMALL, (WheelFile("one", "1", "pkg/small"),)),
        ),
        model("joined", ("all.bin", BIG + b"rest", (ONE_BIG, WheelFile("two", "1", "pkg/rest")))),
        model("hub", ("w.bin", BIG, (HubFile("org/x", "r1", "a b.bin"),))),
        model("absent", ("none.bin", b"x", (WheelFile("two", "1", "pkg/none"),))),
    )
)


def store_at(home: Path, web: Web, *, hashed: bool = True) -> ModelStore:
    promised = {name: sha(content) for name, content in web.files.items()}

    def resolve(distribution: str, version: str) -> Link:
        name = f"{distribution}.whl"
        return Link(f"{web.url}/{name}", promised[name] if hashed else None)

    return ModelStore(home, MODELS, resolve)


def parts(home: Path) -> list[Path]:
    return list((home / "downloads").glob("*.part"))
