"""Who is asking: bearer keys, kept in a file as SHA-256 hashes.

A key is 256 random bits, so a fast hash is enough: there is nothing to guess that could be listed
beforehand. A key is shown once, when it is made.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from llm.api.limits import NO_LIMITS, Limits
from llm.config import ConfigError

PREFIX = "ember-"
"""What keys begin with, so that one that leaked is recognised."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WEBSOCKET_PREFIX = "openai-insecure-api-key."


class KeysError(ConfigError):
    """Something is wrong with the keys file or with what is asked of it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One caller: its name, the SHA-256 of its key in hexadecimal, and its limits."""

    name: str
    sha256: str
    limits: Limits = NO_LIMITS


def secret_of(headers: Mapping[str, str]) -> str | None:
    """The key that a request carries, or None.

    headers: with small letters. `Authorization: Bearer KEY` (RFC 6750) or `x-api-key: KEY`; a
    browser's WebSocket, which can send neither, offers a subprotocol with the key in it.
    """
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    if key := headers.get("x-api-key"):
        return key
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(_WEBSOCKET_PREFIX):
            return protocol.strip().removeprefix(_WEBSOCKET_PREFIX)
    return None


def subprotocol_of(headers: Mapping[str, str]) -> str | None:
    """The first subprotocol that a WebSocket offers beside its key: a browser wants an answer."""
    offered = [p.strip() for p in headers.get("sec-websocket-protocol", "").split(",")]
    return next((p for p in offered if p and not p.startswith(_WEBSOCKET_PREFIX)), None)


class KeyFile:
    """The keys of one machine; read again when the file changes, so that a removal works at once.

    path: need not exist, which means no keys.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = ()

    def read(self) -> tuple[Key, ...]:
        """All keys. Raises KeysError where the file cannot be used."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._keys = None, ()
            return ()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp != self._stamp:
            self._keys = self._parse()
            self._stamp = stamp
        return self._keys

    def find(self, secret: str) -> Key | None:
        """Whose key this is. Takes as long whichever it is, and whether it is one. KeysError."""
        digest = _digest(secret)
        found = None
        for key in self.read():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def add(self, name: str, limits: Limits) -> str:
        """Make a key and return it; it is kept as a hash only. Raises KeysError."""
        if not _NAME.fullmatch(name):
            raise KeysError(f"'{name}' is no name for a key: use letters, digits, '.', '_' and '-'")
        keys = self.read()
        if any(key.name == name for key in keys):
            raise KeysError(f"there is a key named '{name}'; remove it first or use another name")
        secret = PREFIX + secrets.token_urlsafe(32)
        self._write((*keys, Key(name, _digest(secret), limits)))
        return secret

    def remove(self, name: str) -> None:
        """Take a key back. Raises KeysError where there is none of this name."""
        keys = self.read()
        left = tuple(key for key in keys if key.name != name)
        if len(left) == len(keys):
            known = ", ".join(key.name for key in keys) or "none"
            raise KeysError(f"there is no key named '{name}'; there are: {known}")
        self._write(left)

    def _parse(self) -> tuple[Key, ...]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return tuple(_key_from(entry) for entry in data["keys"])
        except OSError as error:
            raise KeysError(f"cannot read the keys in {self.path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise KeysError(f"{self.path} is damaged; remove it and make new keys") from error

    def _write(self, keys: tuple[Key, ...]) -> None:
        entries = [{"name": k.name, "sha256": k.sha256, **asdict(k.limits)} for k in keys]
        beside = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.touch(mode=0o600)
            beside.write_text(json.dumps({"keys": entries}, indent=2) + "\n", encoding="utf-8")
            beside.replace(self.path)
        except OSError as error:
            raise KeysError(f"cannot write the keys to {self.path}: {error.strerror}") from error


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _key_from(entry: Mapping[str, Any]) -> Key:
    limits = {field.name: int(entry.get(field.name, 0)) for field in fields(Limits)}
    return Key(str(entry["name"]), str(entry["sha256"]), Limits(**limits))
