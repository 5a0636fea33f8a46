"""Where a benchmark runs: processor, memory speed, versions and commit. Reads no clock."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from llm.bench.report import Row, Table, spread

FLAGS = frozenset(
    [
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "avx_vnni",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
        "asimddp",
        "i8mm",
        "bf16",
        "sve",
    ]
)
"""What matters to products of matrices, of x86 and of ARM."""

NUM_BYTES = 256 * 2**20
"""Far more than the caches next to the cores hold."""

Work = Callable[[], object]
Stopwatch = Callable[[Work, int], list[float]]
"""Does the work a few times to warm up and then the number of times given; returns ms of each."""

InParallel = Callable[[Sequence[Work]], None]
"""Does all the work at once, each part on a thread of its own."""


def describe_machine() -> dict[str, Any]:
    """Model and instruction sets of the processor, cores that we may use, memory in GiB."""
    model, flags = parse_cpuinfo(Path("/proc/cpuinfo").read_text("utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "cores": num_cores(),
        "flags": sorted(FLAGS & flags),
        "memory_gib": round(memory / 2**30, 1),
        "load_1min": os.getloadavg()[0],
    }


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def parse_cpuinfo(text: str) -> tuple[str, set[str]]:
    """Model name, empty where there is none, and flags of the first processor in /proc/cpuinfo."""
    pairs = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", ""), set(flags.split())


def describe_code() -> dict[str, Any]:
    """Version and commit of Ember, and versions of what it computes with."""
    packages = ("onnxruntime", "numpy", "onnx", "tokenizers")
    versions = {name: version(name) for name in packages}
    return {
        "ember": _ember_version(),
        "commit": _commit(Path(__file__)),
        "versions": {"python": platform.python_version(), **versions},
    }


def memory_bandwidth(stopwatch: Stopwatch, in_parallel: InParallel, threads: int) -> Table:
    """Reading and copying 256 MiB on one thread and on all, in 10^9 bytes a second.

    Copies count the bytes read and those written.
    """
    source, target = np.ones(NUM_BYTES // 4, np.float32), np.zeros(NUM_BYTES // 4, np.float32)
    rows: list[Row] = []
    for count in sorted({1, threads}):
        parts = list(zip(np.array_split(source, count), np.array_split(target, count), strict=True))
        # max keeps up with memory on one core, a sum does not.
        reads: list[Work] = [a.max for a, _ in parts]
        copies: list[Work] = [partial(np.copyto, b, a) for a, b in parts]
        for kind, works, moved in (("read", reads, NUM_BYTES), ("copy", copies, 2 * NUM_BYTES)):
            times = stopwatch(partial(in_parallel, works), 5)
            median_ms = float(spread(times)["median_ms"])
            rows.append({"kind": kind, "threads": count, "gb_s": moved / median_ms / 1e6})
    return Table("memory", "memory bandwidth, 256 MiB, numpy", rows)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _ember_version() -> str:
    try:
        return version("ember-voice")
    except PackageNotFoundError:
        return "not installed"


def _commit(file: Path) -> str | None:
    """The commit that this source tree stands at, with "+" where it was changed; None outside."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may lie inside the tree of somebody else.
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
