"""The benchmark run whole: on a tiny model, and by its command on the real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from llm.bench import run as bench
from llm.bench.engine_speed import EnginePlan
from llm.bench.forward_speed import (
    ForwardPlan,
    contexts_that_fit,
    decode_step,
    measure_limits,
    prefill,
    room,
)
from llm.bench.machine_limits import Work
from llm.bench.products import Products
from llm.bench.report import Report
from llm.bench.run import Plan, in_parallel, stopwatch
from llm.config import EngineConfig
from llm.engine.canvas import Step
from llm.engine.runner_onnx import OnnxRunner
from llm.models.built import load_built
from tests.llm.tiny import write_tiny_gguf
from voice.__main__ import app

TINY = Plan(
    ForwardPlan(repeats=2, rows=(1, 8), contexts=(64, 4096), prefills=(32,)),
    EnginePlan(
        num_turns=2,
        num_prompts=2,
        passes=1,
        curve_turns=3,
        drafts=(0, 3),
        concurrent=(1, 4),
        answer_tokens=6,
    ),
    num_dialogues=8,
)


class FakeRunner:
    """Keeps the steps."""

    context_length = 1000
    num_slots = 1
    num_drafts = 0

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.room = 0

    def open(self, slot: int, num_positions: int) -> None:
        assert slot == 0
        self.room = num_positions

    def close(self, slot: int) -> None:
        self.room = 0

    def forward(self, steps: Sequence[tuple[int, Step]]) -> list[NDArray[np.float32]]:
        self.steps += [step for _, step in steps]
        assert all(step.start + len(step.tokens) <= self.room for _, step in steps)
        return [np.zeros((len(step.wanted), 5), np.float32) for _, step in steps]

    def read_pages(self, slot: int, start: int, end: int) -> NDArray[np.float32]:
        raise AssertionError

    def write_pages(self, slot: int, start: int, pages: NDArray[np.float32]) -> None:
        raise AssertionError


class FakeProducts:
    weight_bytes = 100_000_000
    num_products = 7

    def run(self) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("bench")
    write_tiny_gguf(path / "model.gguf")
    return path


def test_a_prompt_is_computed_whole_and_predicts_once() -> None:
    runner = FakeRunner()
    with room(runner, 600):
        prefill(runner, 10, 600)
    assert runner.room == 0
    positions = [s.start + i for s in runner.steps for i in range(len(s.tokens))]
    assert positions == list(range(10, 600))
    assert [v for s in runner.steps for v in s.visible] == list(range(11, 601))
    assert [len(s.wanted) for s in runner.steps] == [0, 0, 1]


def test_a_measured_step_is_causal_and_every_row_predicts() -> None:
    step = decode_step(256, 3)
    assert (step.start, step.visible, step.wanted) == (256, (257, 258, 259), (0, 1, 2))


def test_contexts_are_cut_to_what_fits() -> None:
    assert contexts_that_fit((128, 512, 1024, 2048), 1000) == [128, 512, 992]
    assert contexts_that_fit((128, 512), 1000) == [128, 512]


def test_limits_are_ratios_of_what_was_timed_in_turn() -> None:
    times = iter([30.0, 12.0, 20.0] * 4)
    table, targets = measure_limits(
        FakeRunner(), FakeProducts(), 10.0, lambda work, n: [next(times)] * n, 4
    )
    row = table.rows[0]
    assert (row["forward_ms"], row["one_row_ms"], row["products_ms"]) == (30, 12, 20)
    assert row["reading_weights_ms"] == 10
    assert row["share_of_bandwidth"] == pytest.approx(1 / 3)
    assert [target.value for target in targets] == pytest.approx([1.5, 0.4])


def test_the_stopwatch_warms_up_and_counts() -> None:
    calls: list[int] = []
    times = stopwatch(lambda: calls.append(1), 5)
    assert len(times) == 5
    assert len(calls) == 8
    assert min(times) >= 0


def test_parts_run_at_once_and_their_errors_are_seen() -> None:
    together = threading.Barrier(3, timeout=10)
    in_parallel([together.wait] * 3)

    def fail() -> None:
        raise ValueError("no")

    works: list[Work] = [fail, fail]
    with pytest.raises(ValueError, match="no"):
        in_parallel(works)


def test_the_floor_has_all_products_of_the_model_and_the_same_results(folder: Path) -> None:
    model = load_built(folder)
    graph = onnx.load(model.graphs[1])
    nodes = [node for node in graph.graph.node if node.op_type == "MatMulIntegerToFloat"]
    options = OnnxRunner(model, 64).sessions[1].get_session_options()
    products = Products(model.graphs[1], options, num_rows=8)
    products.run()
    assert products.num_products == len(nodes) == 4 * model.config.num_layers + 1
    assert products.weight_bytes == sum(_weights_of(graph, node).size for node in nodes)
    assert np.isfinite(products._results).all()
    assert products._results.any()


def _weights_of(graph: onnx.ModelProto, node: onnx.NodeProto) -> NDArray[np.uint8]:
    (weights,) = [w for w in graph.graph.initializer if w.name == node.input[1]]
    return onnx.numpy_helper.to_array(weights)


def check(report: Report) -> None:
    found = json.loads(report.json_line())
    measures = found["measures"]
    assert set(measures) == {
        "memory", "limits", "forward_by_rows", "forward_by_context", "prefill", "ttft",
        "single_stream", "concurrent", "turns", "agreement",
    }  # fmt: skip
    assert all(measures.values())
    assert [row["cached_tokens"] for row in measures["ttft"]] == [288, 288]
    assert [row["running_beside"] for row in measures["ttft"]] == [0, 8]
    assert all(row["same_texts"] == row["texts"] == 4 for row in measures["concurrent"])
    assert measures["single_stream"][0]["nfe"] == 6
    assert measures["turns"][-1]["cached_tokens"] > 0
    (agreement,) = measures["agreement"]
    assert agreement["tokens"] > 100
    # A model of random weights is at a loss, in 8 bits as in 32.
    assert 50 < agreement["same_percent"] < 100
    assert agreement["loss"] == pytest.approx(agreement["float32_loss"], rel=0.1)
    assert len(found["targets"]) == 8
    assert found["machine"]["cores"] >= 1


def test_everything_is_measured_on_a_tiny_model(folder: Path) -> None:
    said: list[str] = []
    config = EngineConfig(max_context_tokens=900)
    check(bench.run(folder, config, TINY, peers=False, tell=said.append))
    assert "first text" in said


def test_nothing_leaks_from_a_tiny_model(folder: Path) -> None:
    report = bench.soak(folder, EngineConfig(max_context_tokens=400, num_slots=3), 120)
    missed = {target.name for target in report.targets if not target.met}
    # A hundred requests are too few for memory to settle.
    assert missed <= {"growth of memory after 20 % of the run"}
    (row,) = report.tables[0].rows
    assert row["requests"] == 120
    assert int(row["cancelled"]) > 10
    assert float(row["prefix_cache_mb"]) > 0


@pytest.mark.models
def test_the_command_prints_one_json_line(
    llm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "QUICK", TINY)
    result = CliRunner().invoke(app, ["bench", "llm", "--quick", "--no-peers", "--json"])
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["model"] == llm_folder.name
    assert found["measures"]["limits"][0]["weight_mb"] > 100
    assert all(row["same_texts"] == row["texts"] for row in found["measures"]["concurrent"])


@pytest.mark.parametrize("arguments", [["--soak", "0"], ["--soak", "many"], ["--loudly"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["bench", "llm", *arguments]).exit_code == 2
