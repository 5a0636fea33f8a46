"""Downloads that survive interruption: what arrived stays in a part file, and is resumed.

A part file is named after what it must become, so a resumed download can only be of the same
content; the hash is checked at the end all the same.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO

from rich.filesize import decimal

from llm.models.errors import NetworkError, NoSpaceError, WrongHashError

CHUNK = 1 << 18

# Silence on an open connection, not the length of the download.
_TIMEOUT_S = 30.0

# The names that pip, requests and OpenSSL give to a file of trusted certificates.
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes that are there, and the bytes of the whole where the server tells."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where bytes can be had. url: https, http or file. sha256: None where nobody tells it."""

    url: str
    sha256: str | None

    @property
    def part_name(self) -> str:
        """Name of the part file: a key of the content, else of the address."""
        key = self.sha256 or hashlib.sha256(self.url.encode()).hexdigest()
        return f"{key[:32]}.part"


def fetch(link: Link, part: Path, on_bytes: OnBytes, *, num_bytes_after: int = 0) -> None:
    """Download `link` into `part`, going on from what lies there.

    num_bytes_after: what the caller will write beside it, so that the disk is asked for both.
    Raises NetworkError, leaving `part` to be resumed; WrongHashError, having removed it;
    NoSpaceError. Resuming follows RFC 9110, section 14 (range requests).
    """
    num_bytes_before = size_of(part) or 0
    if num_bytes_before and link.sha256 == sha256_of(part):
        return
    _receive(link.url, part, num_bytes_before, on_bytes, num_bytes_after)
    if link.sha256 in {None, sha256_of(part)}:
        return
    part.unlink()
    if not num_bytes_before:
        raise WrongHashError(f"{_shown(link.url)} is not the file that was promised; removed it")
    # The bytes from before may be to blame, so once more from the beginning.
    fetch(link, part, on_bytes, num_bytes_after=num_bytes_after)


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise NoSpaceError unless the disk of `folder` has room for `num_bytes` more."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise NoSpaceError(
            f"{decimal(num_bytes)} are needed and {decimal(free)} are free in {folder}; "
            "make room, or set EMBER_HOME to a folder on another disk"
        )


def sha256_of(file: Path) -> str:
    """SHA-256 of the file's content in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def size_of(file: Path) -> int | None:
    """Bytes of a regular file, None where there is none."""
    return file.stat().st_size if file.is_file() else None


def _receive(url: str, part: Path, start: int, on_bytes: OnBytes, num_bytes_after: int) -> None:
    response, start = _open(url, start)
    with response:
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        check_space(part.parent, (total or start) - start + num_bytes_after)
        with part.open("ab" if start else "wb") as file:
            done = start
            on_bytes(done, total)
            while chunk := _read(response, url):
                file.write(chunk)
                done += len(chunk)
                on_bytes(done, total)
    if total is not None and done < total:
        raise _broken_off(url)


def _open(url: str, start: int) -> tuple[http.client.HTTPResponse, int]:
    """Ask for the bytes from `start` on; return the response and where it really starts."""
    request = urllib.request.Request(url, headers={"User-Agent": "ember-voice"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=_tls())
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url, 0)
        raise NetworkError(f"{_shown(url)}: the server says {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise NetworkError(f"cannot reach {_shown(url)}: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(f"cannot reach {_shown(url)}: {error}") from error
    if not start or response.status != HTTPStatus.PARTIAL_CONTENT:
        return response, 0
    if response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        return response, start
    response.close()
    return _open(url, 0)


def _read(response: IO[bytes], url: str) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _broken_off(url) from error


def _broken_off(url: str) -> NetworkError:
    return NetworkError(
        f"the download of {_shown(url)} broke off; what arrived is kept, "
        "run the same command again to go on"
    )


def _tls() -> ssl.SSLContext:
    given = next((os.environ[n] for n in _CERTIFICATE_VARIABLES if os.environ.get(n)), None)
    if given is None:
        return ssl.create_default_context()
    try:
        if Path(given).is_dir():
            return ssl.create_default_context(capath=given)
        return ssl.create_default_context(cafile=given)
    except OSError as error:
        raise NetworkError(f"cannot use the certificates in {given}: {error}") from error


def _shown(url: str) -> str:
    """The address without its query and user, either of which may carry a secret."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
