"""Reading a folder's tensors, and every way in which a folder can be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from llm.models.checkpoint import CheckpointError
from llm.models.safetensors import TensorFolder, read_json
from tests.llm.tiny_families import write_shards

TENSORS = {f"t{i}": torch.arange(12.0).view(4, 3) * (i + 1) for i in range(5)}


@pytest.mark.parametrize("shards", [1, 3])
def test_reads_every_tensor_of_every_shard(shards: int, tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, shards)
    folder = TensorFolder(tmp_path)
    for name, tensor in TENSORS.items():
        assert torch.equal(folder.read(name, (4, 3), torch.float32), tensor)
    assert folder.unread() == []


def test_rows_and_what_is_left_unread(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 1)
    folder = TensorFolder(tmp_path)
    rows = folder.read("t1", (4, 3), torch.float32, rows=(1, 3))
    assert torch.equal(rows, TENSORS["t1"][1:3])
    assert folder.unread() == ["t0", "t2", "t3", "t4"]


@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(stored: torch.dtype, wanted: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([0.1, -2.5, 300.0], dtype=stored)
    save_file({"t": values}, tmp_path / "model.safetensors")
    read = TensorFolder(tmp_path).read("t", (3,), wanted)
    assert read.dtype == wanted
    assert torch.equal(read, values.to(wanted))


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_quantised_tensor_is_named(stored: torch.dtype, tmp_path: Path) -> None:
    save_file({"t": torch.zeros(3).to(stored)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"t is stored as \w+, which is not read"):
        TensorFolder(tmp_path).read("t", (3,), torch.float32)


def test_another_shape_names_both(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 1)
    with pytest.raises(CheckpointError, match=r"t2 has shape \(4, 3\), expected \(3, 4\)"):
        TensorFolder(tmp_path).read("t2", (3, 4), torch.float32)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 1)
    with pytest.raises(CheckpointError, match=r"tensor t9 is missing, expected \(4, 3\)"):
        TensorFolder(tmp_path).read("t9", (4, 3), torch.float32)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"model-00002-of-00003\S+ is missing \(1 of 3 files\)"
    ):
        TensorFolder(tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_a_shard_cut_short_is_named(kept: int, tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, 3)
    shard = tmp_path / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\S+ is not a whole"):
        TensorFolder(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no"):
        TensorFolder(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        ("{}", "has no weight_map"),
        (json.dumps({"weight_map": {"t": "../other.safetensors"}}), "outside of its folder"),
    ],
)
def test_a_broken_index(index: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index, "utf-8")
    with pytest.raises(CheckpointError, match=message):
        TensorFolder(tmp_path)


def test_a_json_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_json(tmp_path / "config.json")
