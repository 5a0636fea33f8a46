"""Adapters on disk: what is read is what was written, and it lands on the right rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llm.models.adapted import (
    DRAFT,
    SPEAK,
    AdaptedCheckpoint,
    DrafterCheckpoint,
    read_adapter,
    save_adapter,
)
from llm.models.checkpoint import CheckpointError
from llm.models.gguf import GgufFile
from tests.llm import tiny
from tests.llm.tiny_adapted import CONFIG, QKV, write_tiny_adapted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_adapted(tmp_path, seed=3)


@pytest.fixture
def adapted(folder: Path) -> AdaptedCheckpoint:
    return AdaptedCheckpoint(GgufFile(folder / "model.gguf"), folder)


def test_matrices_come_back_within_half_a_step_of_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(9, 40)) * rng.uniform(0.01, 50, (9, 1))).astype(np.float32)
    matrix[4] = 0
    vector = rng.normal(size=7).astype(np.float32)
    save_adapter(tmp_path / "x.safetensors", {"m": matrix, "v": vector}, {"key": "value"})
    tensors, metadata = read_adapter(tmp_path / "x.safetensors")
    assert metadata["key"] == "value"
    assert np.array_equal(tensors["v"], vector)
    step = np.abs(matrix).max(axis=1, keepdims=True) / 127
    assert (np.abs(tensors["m"] - matrix) <= step / 2 + 1e-6).all()


@pytest.mark.parametrize(
    ("name", "part", "first", "rows"),
    [
        ("self_attn.q_proj", "qkv", 0, 64),
        ("self_attn.k_proj", "qkv", 64, 32),
        ("self_attn.v_proj", "qkv", 96, 32),
        ("self_attn.o_proj", "output", 0, 64),
        ("mlp.gate_proj", "gate_up", 0, 96),
        ("mlp.up_proj", "gate_up", 96, 96),
        ("mlp.down_proj", "down", 0, 64),
    ],
)
def test_each_matrix_gets_its_own_rows_of_the_correction(
    folder: Path, name: str, part: str, first: int, rows: int
) -> None:
    tensors, _ = read_adapter(folder / SPEAK)
    b, a = tensors[f"layers.1.{part}.b"], tensors[f"layers.1.{part}.a"]
    shape = (rows, a.shape[1])
    base = GgufFile(folder / "model.gguf").tensor(f"model.layers.1.{name}.weight", shape)
    adapted = AdaptedCheckpoint(GgufFile(folder / "model.gguf"), folder)
    found = adapted.tensor(f"model.layers.1.{name}.weight", shape)
    np.testing.assert_allclose(found, base + (b @ a)[first : first + rows], atol=1e-5)
    assert not np.allclose(found, base, atol=0.05)


def test_what_is_not_corrected_stays(folder: Path, adapted: AdaptedCheckpoint) -> None:
    base = GgufFile(folder / "model.gguf")
    for name, shape in (
        ("model.embed_tokens.weight", (base.config.vocab_size, tiny.HIDDEN)),
        ("model.layers.0.input_layernorm.weight", (tiny.HIDDEN,)),
    ):
        assert np.array_equal(adapted.tensor(name, shape), base.tensor(name, shape))
    assert adapted.tokenizer.chat_template.startswith("adapted ")
    assert adapted.tokenizer.tokens == base.tokenizer.tokens


def test_the_drafter_is_a_backbone_of_its_own(folder: Path, adapted: AdaptedCheckpoint) -> None:
    assert adapted.drafter == CONFIG
    small = DrafterCheckpoint(adapted)
    assert small.config.num_layers == 1
    assert small.config.vocab_size == len(CONFIG.token_ids)
    whole = read_adapter(folder / DRAFT)[0]["layers.0.qkv.weight"]
    parts = [
        small.tensor(f"model.layers.0.self_attn.{n}_proj.weight", (rows, tiny.HIDDEN))
        for n, rows in (("q", 64), ("k", 32), ("v", 32))
    ]
    assert whole.shape == (QKV, tiny.HIDDEN)
    assert np.array_equal(np.concatenate(parts), whole)
    head = small.tensor("model.embed_tokens.weight", (len(CONFIG.token_ids), tiny.HIDDEN))
    vocab = adapted.config.vocab_size
    table = adapted.tensor("model.embed_tokens.weight", (vocab, tiny.HIDDEN))
    assert np.array_equal(head, table[list(CONFIG.token_ids)])
    assert small.token_inputs().shape == (vocab, tiny.HIDDEN)
    assert small.mask_inputs().shape == (3, tiny.HIDDEN)


@pytest.mark.parametrize("damage", ["cut", "text", "other"])
def test_a_damaged_adapter_says_so(folder: Path, damage: str) -> None:
    path = folder / DRAFT
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "text":
        path.write_text("not an adapter")
    else:
        save_adapter(path, {"x": np.ones((2, 2), np.float32)}, {})
    with pytest.raises(CheckpointError, match=r"draft\.safetensors"):
        AdaptedCheckpoint(GgufFile(folder / "model.gguf"), folder)


def test_an_adapter_of_another_shape_is_refused(folder: Path) -> None:
    tensors, _ = read_adapter(folder / SPEAK)
    tensors["layers.0.down.b"] = tensors["layers.0.down.b"][:-1]
    save_adapter(folder / SPEAK, tensors, {})
    adapted = AdaptedCheckpoint(GgufFile(folder / "model.gguf"), folder)
    with pytest.raises(CheckpointError, match="down_proj"):
        adapted.tensor("model.layers.0.mlp.down_proj.weight", (tiny.HIDDEN, tiny.INNER))
