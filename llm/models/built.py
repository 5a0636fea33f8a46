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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llm.chat_template import ChatTemplate
from llm.models.adapted import (
    DRAFT,
    SPEAK,
    TEMPLATE,
    AdaptedCheckpoint,
    DrafterCheckpoint,
    drafter_config,
)
from llm.models.checkpoint import Checkpoint, CheckpointError, TokenizerData
from llm.models.gguf import GgufFile
from llm.models.integer_products import signed_products_are_exact
from llm.models.rounding import quantize_channels
from llm.models.spec import DrafterConfig, TransformerConfig
from llm.tokenizer import Tokenizer
from llm.types import Message

if TYPE_CHECKING:
    from llm.models.onnx_graph import GraphBuilder

CALIBRATION = Path(__file__).with_name("calibration.txt")

GRAPH_SIZES = (1, 4, 16)
"""Sequences that share a forward; a step takes the smallest graph that holds its sequences."""

FORMAT = 2
"""Raised when what is built changes, so that older builds are made anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltDrafter:
    """What drafts for a model: a small model that reads what the large one makes of the text.

    graphs: as for the model; they take features plus what the token behind adds to them (inputs
    int8 [vocab, hidden] with input_scale float32 [vocab]), or a mask (float32 [masks, hidden]).
    """

    config: DrafterConfig
    graphs: dict[int, Path]
    inputs: NDArray[np.int8]
    input_scale: NDArray[np.float32]
    masks: NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model ready to run.

    graphs: files of the ONNX graphs, by how many sequences share a forward; they refer to the
    same weights beside them. embedding: int8 [vocab, hidden] with embedding_scale float32
    [vocab], memory-mapped. drafter: None where the model has none.
    """

    config: TransformerConfig
    tokenizer: TokenizerData
    graphs: dict[int, Path]
    embedding: NDArray[np.int8]
    embedding_scale: NDArray[np.float32]
    drafter: BuiltDrafter | None = None


def load_built(folder: Path, on_build: Callable[[str], None] = lambda _: None) -> BuiltModel:
    """The model in `folder` (model.gguf and adapters), built now if it was not built before.

    on_build is called with a line for the user before a build, which takes some seconds.
    Raises CheckpointError where the checkpoint or the folder cannot be used.
    """
    unsigned = not signed_products_are_exact()
    target = folder / f"built-{FORMAT}-{'u8' if unsigned else 's8'}"
    try:
        stamp = _stamp(folder)
        if not _is_current(target, stamp):
            on_build(f"preparing {folder.name} for this machine, once")
            _build(open_checkpoint(folder), target, stamp, unsigned)
        return _read(target)
    except OSError as error:
        raise CheckpointError(f"cannot prepare the model in {folder}: {error}") from error


def open_checkpoint(folder: Path) -> Checkpoint:
    """The model.gguf in a folder, with the adapters beside it if there are any."""
    base = GgufFile(folder / "model.gguf")
    return AdaptedCheckpoint(base, folder) if (folder / SPEAK).is_file() else base


def _stamp(folder: Path) -> dict[str, list[int]]:
    """Size and date of what a build is made from."""
    paths = [folder / name for name in ("model.gguf", SPEAK, DRAFT, TEMPLATE)]
    found = {path.name: path.stat() for path in paths if path.is_file()}
    if "model.gguf" not in found:
        raise FileNotFoundError("model.gguf is missing")
    return {name: [status.st_size, status.st_mtime_ns] for name, status in found.items()}


def _is_current(target: Path, stamp: dict[str, list[int]]) -> bool:
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


def _build(original: Checkpoint, target: Path, stamp: dict[str, list[int]], unsigned: bool) -> None:
    # The builder imports torch and onnx, seconds that only the first run needs to spend.
    from llm.models.onnx_graph import GraphBuilder  # noqa: PLC0415
    from llm.models.smoothing import SmoothedCheckpoint, find_factors  # noqa: PLC0415

    file = SmoothedCheckpoint(original, find_factors(original, calibration_texts(original)))
    drafter, config = file.drafter, file.config
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as name:
        folder = Path(name) / target.name
        folder.mkdir()
        depths = drafter.depths if drafter is not None else ()
        builder = GraphBuilder(file, unsigned_weights=unsigned, feature_depths=depths)
        _write_graphs(builder, folder, "graph")
        table = (config.vocab_size, config.hidden_size)
        _write_table(folder / "embedding", file.tensor("model.embed_tokens.weight", table))
        if drafter is not None:
            small = DrafterCheckpoint(original)
            _write_graphs(GraphBuilder(small, unsigned_weights=unsigned), folder, "drafter")
            _write_table(folder / "drafter", small.token_inputs())
            np.save(folder / "drafter_masks.npy", small.mask_inputs())
        tokenizer = dataclasses.asdict(file.tokenizer)
        tokenizer["special_ids"] = sorted(file.tokenizer.special_ids)
        description = {
            "stamp": stamp,
            "digests": _digests(folder),
            "config": dataclasses.asdict(config),
            "tokenizer": tokenizer,
            "drafter": dataclasses.asdict(drafter) if drafter is not None else None,
        }
        (folder / "model.json").write_text(json.dumps(description), "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _write_graphs(builder: GraphBuilder, folder: Path, name: str) -> None:
    from llm.models.onnx_graph import move_weights  # noqa: PLC0415

    move_weights(builder.weights, folder / f"{name}.bin")
    for num_sequences in GRAPH_SIZES:
        model = builder.graph(num_sequences).SerializeToString()
        (folder / f"{name}-{num_sequences}.onnx").write_bytes(model)


def _write_table(path: Path, values: NDArray[np.float32]) -> None:
    """A table that is looked up by rows, in 8 bits with a scale for each."""
    integers, scale = quantize_channels(values)
    np.save(path.with_name(f"{path.name}.npy"), integers)
    np.save(path.with_name(f"{path.name}_scale.npy"), scale)


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
        drafter=_read_drafter(target, description["drafter"]),
    )


def _read_drafter(target: Path, fields: dict[str, Any] | None) -> BuiltDrafter | None:
    if fields is None:
        return None
    return BuiltDrafter(
        config=drafter_config(fields),
        graphs={size: target / f"drafter-{size}.onnx" for size in GRAPH_SIZES},
        inputs=np.load(target / "drafter.npy", mmap_mode="r"),
        input_scale=np.load(target / "drafter_scale.npy", mmap_mode="r"),
        masks=np.load(target / "drafter_masks.npy"),
    )
