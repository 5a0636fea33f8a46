"""What is built from a checkpoint: once, whole or not at all, anew when its source changed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from llm.engine.canvas import Step
from llm.engine.runner_onnx import OnnxRunner
from llm.models import built
from llm.models.built import BuiltModel, load_built
from llm.models.checkpoint import CheckpointError
from llm.models.gguf import GgufFile
from llm.models.integer_products import signed_products_are_exact
from llm.models.onnx_graph import GraphBuilder
from llm.models.rounding import quantize_channels
from tests.llm.tiny import write_tiny_gguf


def run(model: BuiltModel, step: Step) -> list[np.ndarray]:
    runner = OnnxRunner(model, 64)
    runner.open(0, 64)
    return runner.forward([(0, step)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_gguf(tmp_path / "model.gguf")
    return tmp_path


def test_built_once(folder: Path) -> None:
    said: list[str] = []
    first = load_built(folder, said.append)
    second = load_built(folder, said.append)
    assert len(said) == 1
    assert second.config == first.config == GgufFile(folder / "model.gguf").config
    assert second.tokenizer == first.tokenizer == GgufFile(folder / "model.gguf").tokenizer


def test_built_anew_when_the_checkpoint_changes(folder: Path) -> None:
    before = load_built(folder).embedding.copy()
    write_tiny_gguf(folder / "model.gguf", seed=1)
    os.utime(folder / "model.gguf", ns=(1, 1))
    assert not np.array_equal(load_built(folder).embedding, before)


def test_an_interrupted_build_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(built.np, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        load_built(folder)
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("damage", ["model.json", "graph-4.onnx", "graph.bin", "embedding.npy"])
def test_a_damaged_build_is_made_anew(folder: Path, damage: str) -> None:
    target = load_built(folder).graphs[1].parent
    whole = (target / damage).read_bytes()
    for content in (None, b"", whole[: len(whole) // 2], whole[:-1] + b"?"):
        if content is None:
            (target / damage).unlink()
        else:
            (target / damage).write_bytes(content)
        said: list[str] = []
        load_built(folder, said.append)
        assert said
        assert (target / damage).read_bytes() == whole


def test_a_missing_checkpoint_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot prepare"):
        load_built(tmp_path)


def test_signed_and_unsigned_weights_give_the_same_sums(folder: Path) -> None:
    if not signed_products_are_exact():
        pytest.skip("this processor saturates signed products, which is why both kinds exist")
    outputs = []
    for unsigned in (False, True):
        model = load_built(folder)
        builder = GraphBuilder(GgufFile(folder / "model.gguf"), unsigned_weights=unsigned)
        model.graphs[1].write_bytes(builder.graph(1).SerializeToString())
        step = Step(start=0, tokens=(9, 80, 200, 31), visible=(1, 2, 3, 4), wanted=(0, 1, 2, 3))
        outputs += run(model, step)
    assert np.array_equal(outputs[0], outputs[1])


def test_a_row_of_zeros_stays_finite_and_alone(folder: Path) -> None:
    model = load_built(folder)
    scale = model.embedding_scale.copy()
    scale[9] = 0
    zeroed = dataclasses.replace(model, embedding_scale=scale)

    def logits(tokens: tuple[int, ...]) -> np.ndarray:
        causal = tuple(range(1, len(tokens) + 1))
        step = Step(0, tokens, causal, tuple(range(len(tokens))))
        return run(zeroed, step)[0]

    rows = logits((80, 9, 200))
    assert np.isfinite(rows).all()
    assert np.array_equal(rows[:1], logits((80, 31, 200))[:1])
    embedded_zero = logits((9, 9))
    assert np.array_equal(embedded_zero[0], np.zeros_like(embedded_zero[0]))


def test_channels_are_rounded_to_the_nearest_step() -> None:
    weight = np.array([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0]], np.float32)
    integers, scale = quantize_channels(weight)
    assert integers.tolist() == [[127, -50, 0], [0, 0, 0]]
    np.testing.assert_allclose(scale[0], 0.01, rtol=1e-6)


def test_the_self_check_uses_the_session_it_speaks_of() -> None:
    assert signed_products_are_exact() in (True, False)
    assert "CPUExecutionProvider" in ort.get_available_providers()
