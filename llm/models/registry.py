"""The models that Ember knows by name: what they are, their files, and where each comes from.

The registry is a TOML file shipped beside this module. It is checked as a whole when it is read,
so that whoever holds a `Registry` need not check again.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from llm.config import ConfigError
from llm.models.errors import UnknownModelError

SHIPPED_REGISTRY = Path(__file__).with_name("registry.toml")

# Names become names of files and folders: no separators, no leading dot, no case to confuse.
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ModelKind(Enum):
    """What a model is for."""

    LLM = "llm"
    ASR = "asr"
    TTS = "tts"
    TURN = "turn"
    VAD = "vad"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a published wheel: its distribution, version, and path inside the archive."""

    distribution: str
    version: str
    path: str


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a Hugging Face repository at one revision."""

    repository: str
    revision: str
    path: str


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A file that this package ships; path: below llm/models."""

    path: str


Source = WheelFile | HubFile | PackageFile


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model.

    name: in the model's folder. size: bytes. sha256: 64 hexadecimal digits, of the whole file.
    sources: one or more, to be joined in this order.
    """

    name: str
    size: int
    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """One model; default says whether it belongs to the set that is pulled unasked."""

    name: str
    kind: ModelKind
    licence: str
    description: str
    default: bool
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Registry:
    """All known models, in the order of the file."""

    models: tuple[Model, ...]

    @property
    def default_names(self) -> tuple[str, ...]:
        """Names of the models that are pulled unasked."""
        return tuple(model.name for model in self.models if model.default)

    def find(self, name: str) -> Model:
        """Return the model called `name`. Raises UnknownModelError."""
        by_name = {model.name: model for model in self.models}
        if name not in by_name:
            raise UnknownModelError(f"unknown model '{name}'{_hint(name, by_name)}")
        return by_name[name]


def load_registry(file: Path = SHIPPED_REGISTRY) -> Registry:
    """Read and check a registry file. Raises ConfigError, which names the place and the reason."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the model registry {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    models = _checked(data, file.name, {"models": dict})["models"]
    return Registry(tuple(_model(name, table) for name, table in models.items()))


def _model(name: str, table: object) -> Model:
    where = f"model '{name}'"
    _match(_MODEL_NAME, name, where, "a name")
    wanted = {"kind": str, "licence": str, "description": str, "default": bool, "files": list}
    values = _checked(table, where, wanted)
    kinds = {kind.value for kind in ModelKind}
    if values["kind"] not in kinds:
        raise ConfigError(f"{where} has the unknown kind '{values['kind']}'; {_list(kinds)}")
    files = tuple(_file(where, index, entry) for index, entry in enumerate(values["files"], 1))
    names = [file.name for file in files]
    for twice in names:
        if names.count(twice) > 1:
            raise ConfigError(f"{where} has two files called '{twice}'")
    return Model(
        name=name,
        kind=ModelKind(values["kind"]),
        licence=values["licence"],
        description=values["description"],
        default=values["default"],
        files=files,
    )


def _file(model: str, index: int, table: object) -> ModelFile:
    where = f"file {index} of {model}"
    wanted = {"name": str, "size": int, "sha256": str, "sources": list}
    values = _checked(table, where, wanted)
    _match(_FILE_NAME, values["name"], where, "a name")
    _match(_SHA256, values["sha256"], where, "a sha256")
    if values["size"] <= 0:
        raise ConfigError(f"{where} has the size {values['size']}, which must be positive")
    sources = tuple(_source(where, entry) for entry in values["sources"])
    return ModelFile(values["name"], values["size"], values["sha256"], sources)


def _source(file: str, table: object) -> Source:
    where = f"a source of {file}"
    if isinstance(table, dict) and "hub" in table:
        values = _checked(table, where, {"hub": str, "revision": str, "path": str})
        return HubFile(values["hub"], values["revision"], values["path"])
    if isinstance(table, dict) and "package" in table:
        return PackageFile(_checked(table, where, {"package": str})["package"])
    values = _checked(table, where, {"wheel": str, "version": str, "path": str})
    return WheelFile(values["wheel"], values["version"], values["path"])


def _checked(table: object, where: str, wanted: Mapping[str, type]) -> dict[str, Any]:
    """Return `table` if it has exactly the wanted keys, of the wanted types and not empty."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    for key in table:
        if key not in wanted:
            raise ConfigError(f"{where} has the unknown key '{key}'{_hint(key, wanted)}")
    for key, kind in wanted.items():
        if key not in table:
            raise ConfigError(f"{where} lacks '{key}'")
        # `type`, because a bool would pass for an int.
        if type(table[key]) is not kind:
            raise ConfigError(f"'{key}' of {where} must be of type {kind.__name__}")
        if kind in {str, list, dict} and not table[key]:
            raise ConfigError(f"'{key}' of {where} is empty")
    return table


def _match(pattern: re.Pattern[str], text: str, where: str, what: str) -> None:
    if not pattern.fullmatch(text):
        raise ConfigError(f"{where} has {what} that cannot be used: '{text}'")


def _hint(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; {_list(known)}"


def _list(known: Collection[str]) -> str:
    return f"known: {', '.join(sorted(known))}"
