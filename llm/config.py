"""Where Ember keeps things, and how a configuration is put together.

One frozen dataclass per process is built once, in `__main__`: defaults < TOML file <
`EMBER_*` environment < flags. Unknown keys are refused with the nearest known one named.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting is unknown or has a value that cannot be used; the message names it."""


def ember_home(environment: Mapping[str, str] | None = None) -> Path:
    """The folder for models and caches: EMBER_HOME, else `ember` in the XDG cache folder."""
    env = os.environ if environment is None else environment
    if home := env.get("EMBER_HOME"):
        return Path(home).expanduser()
    cache = env.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "ember"


def data_home(environment: Mapping[str, str] | None = None) -> Path:
    """The folder for what cannot be had again: EMBER_HOME, else `ember` in the XDG data folder."""
    env = os.environ if environment is None else environment
    if home := env.get("EMBER_HOME"):
        return Path(home).expanduser()
    data = env.get("XDG_DATA_HOME")
    return (Path(data).expanduser() if data else Path.home() / ".local" / "share") / "ember"


def keys_path(environment: Mapping[str, str] | None = None) -> Path:
    """The file with the keys of this machine's server."""
    return data_home(environment) / "keys.json"


def hub_url(environment: Mapping[str, str] | None = None) -> str:
    """Where Hugging Face repositories are: HF_ENDPOINT, as Hugging Face's own tools read it."""
    env = os.environ if environment is None else environment
    return env.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine may use.

    num_threads: compute threads of a forward, 0 = all cores. max_context_tokens: prompt and answer
    together. max_queue: requests held at once, running and waiting. num_slots: requests that run
    at once. num_draft_tokens: masks behind the clean text in each forward, at most.
    decoding: how masks are revealed, for models whose drafts are not verified; see
    `llm.engine.decoding`. prefix_cache_mb: memory for text that was computed before, 46 kB a
    token for the embedded model.
    """

    num_threads: int = 0
    max_context_tokens: int = 4096
    max_queue: int = 64
    num_slots: int = 16
    num_draft_tokens: int = 6
    decoding: str = "threshold=0.9"
    prefix_cache_mb: int = 192


def build(
    cls: type[T],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> T:
    """Build the frozen dataclass `cls` from its defaults, a TOML file, EMBER_* and flags.

    Flags whose value is None were not given. Raises ConfigError for an unreadable file, an
    unknown key, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    types = get_type_hints(cls)
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for source, given in (
        (str(file), _read_toml(file) if file else {}),
        ("the environment", _from_environment(environment or {}, known)),
        ("the command line", {k: v for k, v in (flags or {}).items() if v is not None}),
    ):
        for key, value in given.items():
            if key not in known:
                raise ConfigError(f"unknown setting '{key}' in {source}{_nearest(key, known)}")
            values[key] = _convert(key, value, types[key], source)
    return cls(**values)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _from_environment(environment: Mapping[str, str], known: set[str]) -> dict[str, str]:
    # EMBER_HOME is the place of the cache, not a setting of any dataclass.
    names = {n: n[6:].lower() for n in environment if n.startswith("EMBER_") and n != "EMBER_HOME"}
    for name, key in names.items():
        if key not in known:
            raise ConfigError(
                f"unknown environment variable {name}{_nearest(key, known, 'EMBER_')}"
            )
    return {key: environment[name] for name, key in names.items()}


def _nearest(key: str, known: set[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if not close:
        return f"; known: {', '.join(sorted(known))}"
    return f"; did you mean {prefix}{close[0].upper() if prefix else close[0]}?"


def _convert(key: str, value: Any, wanted: type, source: str) -> Any:
    if isinstance(value, wanted) and not (wanted is not bool and isinstance(value, bool)):
        return value
    try:
        if wanted is bool and str(value).lower() in {"1", "true", "yes", "0", "false", "no"}:
            return str(value).lower() in {"1", "true", "yes"}
        if wanted in {int, float} and isinstance(value, str | int | float):
            number = wanted(value)
            if float(number) == float(value):
                return number
        if wanted is Path and isinstance(value, str):
            return Path(value).expanduser()
    except ValueError:
        pass
    raise ConfigError(f"setting '{key}' in {source} must be {wanted.__name__}, not {value!r}")
