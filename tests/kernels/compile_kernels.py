"""Compiles the kernels for GPUs that are not here; prints one JSON line for each.

A process of its own: under TRITON_INTERPRET=1, which is read at import, nothing can be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import attention_tiles, vocabulary_tiles
from kernels.paged_attention import _attention_kernel
from kernels.reveal import _reveal_kernel

CAPABILITIES = ((8, 0), (9, 0), (10, 0))
ATTENTION_CASES = (("bf16", 64, 3), ("fp16", 128, 7), ("fp32", 128, 1))
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def spilled_bytes(cubin: bytes) -> int:
    """Stack that a thread needs: registers that did not fit (our kernels have no arrays)."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    found = re.search(r"STACK:(\d+)", usage.stdout)
    assert found, usage.stdout
    return int(found[1])


def compile_for(capability, kernel, types, constants, **options):
    """Pointers and strides are multiples of 16, as at a launch for any real model."""
    names = kernel.arg_names[: len(types)]
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
        if kind.startswith("*") or name.endswith("stride")
    }
    source = ASTSource(
        kernel,
        dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs=aligned,
    )
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
    return triton.compile(source, target=target, options=options)


def compile_attention(capability, element, head_size, group):
    tiles = attention_tiles(head_size, ELEMENT_BYTES[element], group, capability)
    types = [f"*{element}"] * 3 + ["*i32"] * 3 + [f"*{element}", "i32", "fp32"] + ["i32"] * 3
    constants = {
        "group": group,
        "head_size": head_size,
        "page_size": 16,
        "block_m": tiles.block_m,
        "block_n": tiles.block_n,
    }
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return compile_for(capability, _attention_kernel, types, constants, **options)


def compile_reveal(capability, element):
    tiles = vocabulary_tiles()
    types = [f"*{element}", "*i32", "*fp32", "*fp32", "i32", "i32", "i32"]
    constants = {"block_n": tiles.block_n}
    return compile_for(capability, _reveal_kernel, types, constants, num_warps=tiles.num_warps)


def compiled() -> Iterator[tuple[str, tuple[int, int], object]]:
    for capability in CAPABILITIES:
        for case in ATTENTION_CASES:
            yield f"attention {case}", capability, compile_attention(capability, *case)
        yield "reveal bf16", capability, compile_reveal(capability, "bf16")


if __name__ == "__main__":
    for name, capability, kernel in compiled():
        report = {
            "name": name,
            "capability": capability,
            "shared_bytes": kernel.metadata.shared,
            "spilled_bytes": spilled_bytes(kernel.asm["cubin"]),
        }
        print(json.dumps(report), flush=True)  # noqa: T201 - read by test_compiled
