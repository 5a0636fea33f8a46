"""The Triton kernels without a GPU: interpreted, compiled, and absent.

Each in a process of its own: whether kernels are interpreted or compiled is settled at import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED_KIB = {(8, 0): 163, (9, 0): 227, (10, 0): 227}
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
import kernels, kernels.paged_attention
from kernels.launch import runs_on_triton
from kernels.reveal import reveal
print(reveal(torch.tensor([[0.0, 2.0, 1.0]]), 1).ids.tolist())
class OnGpu:
    is_cuda = True
try:
    runs_on_triton(OnGpu())
except RuntimeError as error:
    print(error)
"""


def run(arguments: list[str], **environment: str) -> str:
    """Standard output of a Python process at the repository's root; fails if it does."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@ON_LINUX
def test_interpreted_kernels_equal_their_references() -> None:
    out = run(
        ["-m", "pytest", "-p", "no:cacheprovider", "tests/kernels/interpreted_kernels.py"],
        TRITON_INTERPRET="1",
    )
    assert "passed" in out


@ON_LINUX
def test_kernels_compile_within_each_gpu_s_limits(tmp_path: Path) -> None:
    # A fresh cache: what was compiled before may be of other sources' making.
    out = run(["-m", "tests.kernels.compile_kernels"], TRITON_CACHE_DIR=str(tmp_path))
    reports = [json.loads(line) for line in out.splitlines()]
    assert {tuple(r["capability"]) for r in reports} == set(SHARED_KIB)
    for report in reports:
        # The compiler does not check this limit; the launch would fail.
        limit = SHARED_KIB[tuple(report["capability"])] * 1024
        assert report["shared_bytes"] <= limit, report
        assert report["spilled_bytes"] == 0, report


def test_without_triton_the_references_work_and_a_gpu_tensor_is_refused() -> None:
    ids, refusal = run(["-c", WITHOUT_TRITON]).splitlines()
    assert ids == "[2]"
    assert "pip install" in refusal
