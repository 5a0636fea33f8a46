"""Reads the tensors of a Hugging Face folder: one *.safetensors file or many, named by an index.

In: a tensor's name, the shape it must have, the dtype wanted. Out: the tensor; the files are
memory-mapped, so a tensor is read from disk when it is asked for. Knows no model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm.models.checkpoint import CheckpointError

INDEX = "model.safetensors.index.json"
READABLE_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Stored types that are read; anything else is a quantised checkpoint."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError where there is none to read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; a model folder must have it") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return content


class TensorFolder:
    """The tensors of a folder by name.

    Raises CheckpointError where a file is missing, cut short or not a safetensors file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {name: _open(folder / name) for name in _file_names(folder)}
        self._file_of = {
            tensor: name
            for name, file in self._files.items()
            for tensor in file.keys()  # noqa: SIM118 - it is not a dict and cannot be iterated
        }
        self._unread = set(self._file_of)

    def read(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        rows: tuple[int, int] | None = None,
    ) -> Tensor:
        """The tensor `name` in `dtype`; with `rows` only [first, last) of them.

        shape: what the whole tensor must have. Raises CheckpointError with the name and both
        shapes where it has another, and where it is missing or stored in a type that is not read.
        """
        if name not in self._file_of:
            raise CheckpointError(f"{self._folder}: tensor {name} is missing, expected {shape}")
        stored = self._files[self._file_of[name]].get_slice(name)
        if (kind := stored.get_dtype()) not in READABLE_TYPES:
            raise CheckpointError(
                f"{self._folder}: {name} is stored as {kind}, which is not read; "
                "use the unquantised checkpoint"
            )
        if (found := tuple(stored.get_shape())) != shape:
            raise CheckpointError(f"{self._folder}: {name} has shape {found}, expected {shape}")
        self._unread.discard(name)
        first, last = rows or (0, shape[0])
        part: Tensor = stored[first:last]
        return part.to(dtype)

    def unread(self) -> list[str]:
        """Names of the tensors that nobody has asked for, sorted."""
        return sorted(self._unread)


def _file_names(folder: Path) -> list[str]:
    index = folder / INDEX
    if not index.exists():
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if not names:
            raise CheckpointError(f"{folder} holds no *.safetensors file")
        return names
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{index} points outside of its folder: {outside[0]}")
    if missing := [name for name in names if not (folder / name).exists()]:
        raise CheckpointError(
            f"{folder}: {', '.join(missing)} is missing ({len(missing)} of {len(names)} files); "
            "download the model again"
        )
    return names


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error
