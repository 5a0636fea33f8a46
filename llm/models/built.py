"""A checkpoint made ready for the CPU, once: the graph, the embedding and the tokenizer on disk.

Reading a GGUF, smoothing and rounding it takes some 15 seconds, loading what was built from it half
a second. Built beside the checkpoint, complete or not at all; a damaged build is made anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm.chat_template import ChatTemplate
from llm.models.checkpoint import Checkpoint, CheckpointError, TokenizerData
from llm.models.gguf import GgufFile
from llm.models.integer_products import signed_products_are_exact
from llm.models.spec import TransformerConfig
from llm.tokenizer import Tokenizer
from llm.types import Message

CALIBRATION = Path(__file__).with_name("calibration.txt")

GRAPH_SIZES = (1, 4, 16)
"""Sequences that share a forward; a step takes the smallest graph that holds its sequences."""

FORMAT = 1
"""Raised when what is built changes, so that older builds are made anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model ready to run.

    graphs: files of the ONNX graphs, by how many sequences share a forward; they refer to the
    same weights beside them. embedding: int8 [vocab, hidden] with embedding_scale float32
    [vocab], memory-mapped.
    """

    config: TransformerConfig
    tokenizer: TokenizerData
    graphs: dict[int, Path]
    embedding: NDArray[np.int8]
    embedding_scale: NDArray[np.float32]


def load_built(folder: Path, on_build: Callable[[str], None] = lambda _: None) -> BuiltModel:
    """The model in `folder` (model.gguf), built now if it was not built before.

    on_build is called with a line for the user before a build, which takes some seconds.
    Raises CheckpointError where the checkpoint or the folder cannot be used.
    """
    checkpoint = folder / "model.gguf"
    unsigned = not signed_products_are_exact()
    target = folder / f"built-{FORMAT}-{'u8' if unsigned else 's8'}"
    try:
        stamp = _stamp(checkpoint)
        if not _is_current(target, stamp):
            on_build(f"preparing {folder.name} for this machine, once")
            _build(checkpoint, target, stamp, unsigned)
        return _read(target)
    except OSError as error:
        raise CheckpointError(f"cannot prepare the model in {folder}: {error}") from error


def _stamp(checkpoint: Path) -> dict[str, int]:
    status = checkpoint.stat()
    return {"size": status.st_size, "modified_ns": status.st_mtime_ns}


def _is_current(target: Path, stamp: dict[str, int]) -> bool:
    try:
        description = json.loads((target / "model.json").read_text("utf-8"))
        return bool(description["stamp"] == stamp and description["digests"] == _digests(target))
    except (OSError, ValueError, KeyError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every large file; hashing 160 MB takes 0.2 s."""
    digests = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in {".onnx", ".npy", ".bin"}:
            with path.open("rb") as stream:
                digests[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def calibration_texts(checkpoint: Checkpoint) -> list[list[int]]:
    """Short exchanges, as the model sees them, to find the outliers of its activations."""
    tokenizer = Tokenizer(checkpoint.tokenizer)
    template = ChatTemplate(checkpoint.tokenizer.chat_template)
    pairs = CALIBRATION.read_text("utf-8").strip().split("\n\n")
    exchanges = [pair.partition("\n") for pair in pairs]
    return [
        template.encode((Message("user", question), Message("assistant", answer)), tokenizer)
        for question, _, answer in exchanges
    ]


def _build(checkpoint: Path, target: Path, stamp: dict[str, int], unsigned: bool) -> None:
    # The builders import torch and onnx, seconds that only the first run needs to spend.
    from llm.models.onnx_graph import GraphBuilder, move_weights, quantize_channels  # noqa: PLC0415
    from llm.models.smoothing import SmoothedCheckpoint, find_factors  # noqa: PLC0415

    original = GgufFile(checkpoint)
    file = SmoothedCheckpoint(original, find_factors(original, calibration_texts(original)))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as name:
        folder = Path(name) / target.name
        folder.mkdir()
        builder = GraphBuilder(file, unsigned_weights=unsigned)
        move_weights(builder.weights, folder / "weights.bin")
        for num_sequences in GRAPH_SIZES:
            model = builder.graph(num_sequences).SerializeToString()
            (folder / f"graph-{num_sequences}.onnx").write_bytes(model)
        config = file.config
        integers, scale = quantize_channels(
            file.tensor("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        )
        np.save(folder / "embedding.npy", integers)
        np.save(folder / "embedding_scale.npy", scale)
        tokenizer = dataclasses.asdict(file.tokenizer)
        tokenizer["special_ids"] = sorted(file.tokenizer.special_ids)
        description = {
            "stamp": stamp,
            "digests": _digests(folder),
            "config": dataclasses.asdict(config),
            "tokenizer": tokenizer,
        }
        (folder / "model.json").write_text(json.dumps(description), "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _read(target: Path) -> BuiltModel:
    description: dict[str, Any] = json.loads((target / "model.json").read_text("utf-8"))
    tokenizer = description["tokenizer"]
    return BuiltModel(
        config=TransformerConfig(**description["config"]),
        tokenizer=TokenizerData(
            tokens=tuple(tokenizer["tokens"]),
            merges=tuple(tokenizer["merges"]),
            special_ids=frozenset(tokenizer["special_ids"]),
            eos_id=tokenizer["eos_id"],
            chat_template=tokenizer["chat_template"],
        ),
        graphs={size: target / f"graph-{size}.onnx" for size in GRAPH_SIZES},
        embedding=np.load(target / "embedding.npy", mmap_mode="r"),
        embedding_scale=np.load(target / "embedding_scale.npy", mmap_mode="r"),
    )
