"""GGUF reading against a byte-by-byte reading of the format's published block layouts."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from llm.models.checkpoint import CheckpointError
from llm.models.gguf import READABLE_TYPES, GgufFile
from tests.llm.tiny import HEAD, HEADS, HIDDEN, INNER, write_tiny_gguf


def slow_block(kind: str, raw: bytes) -> list[float]:
    """One block of 32 (or one value), by the layout in ggml-common.h."""
    if kind == "F32":
        return [struct.unpack("<f", raw)[0]]
    if kind == "F16":
        return [struct.unpack("<e", raw)[0]]
    scale = struct.unpack("<e", raw[:2])[0]
    if kind == "Q8_0":
        return [scale * v for v in struct.unpack("<32b", raw[2:])]
    if kind == "Q4_0":
        low = [(byte & 15) - 8 for byte in raw[2:]]
        high = [(byte >> 4) - 8 for byte in raw[2:]]
        return [scale * v for v in low + high]
    minimum = struct.unpack("<e", raw[2:4])[0]
    return [scale * v + minimum for v in [b & 15 for b in raw[4:]] + [b >> 4 for b in raw[4:]]]


BLOCK_BYTES = {"F32": 4, "F16": 2, "Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


def test_every_readable_type_has_a_slow_reading() -> None:
    assert set(BLOCK_BYTES) == READABLE_TYPES


@pytest.mark.parametrize("kind", sorted(READABLE_TYPES))
def test_values_equal_the_slow_reading(tmp_path: Path, kind: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", kinds=(Kind[kind],))
    raw = {t.name: t for t in gguf.GGUFReader(path).tensors}["blk.1.ffn_down.weight"]
    data, step = raw.data.tobytes(), BLOCK_BYTES[kind]
    slow = [v for at in range(0, len(data), step) for v in slow_block(kind, data[at : at + step])]
    read = GgufFile(path).tensor("model.layers.1.mlp.down_proj.weight", (HIDDEN, INNER))
    np.testing.assert_allclose(read.ravel(), np.array(slow, np.float32), rtol=1e-6)
    assert read.flags.writeable


def test_queries_are_reordered_from_pairs_to_halves(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}["blk.0.attn_q.weight"].data
    read = GgufFile(path).tensor("model.layers.0.self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN))
    for head in range(HEADS):
        for i in range(HEAD // 2):
            first, second = stored[head * HEAD + 2 * i], stored[head * HEAD + 2 * i + 1]
            np.testing.assert_array_equal(read[head * HEAD + i], first)
            np.testing.assert_array_equal(read[head * HEAD + HEAD // 2 + i], second)


def test_wrong_shape_names_the_tensor_and_both_shapes(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf"))
    with pytest.raises(CheckpointError, match=r"mlp\.down_proj.*\(64, 96\).*\(3, 4\)"):
        file.tensor("model.layers.0.mlp.down_proj.weight", (3, 4))


def test_unread_type_is_named(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", kinds=(Kind.Q5_0,)))
    with pytest.raises(CheckpointError, match="Q5_0"):
        file.tensor("model.layers.0.mlp.gate_proj.weight", (INNER, HIDDEN))


@pytest.mark.parametrize("content", [b"", b"hello", b"GGUF", b"GGUF" + b"\xff" * 64])
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable GGUF"):
        GgufFile(path)


def test_a_truncated_file_is_one_clear_error(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for size in (100, len(whole) // 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            GgufFile(path)
