"""The loop: a run that was cut goes on as if it had not been; and both stages, end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from llm.adapt import train as stages
from llm.adapt.train import Plan, train
from llm.engine.runner_onnx import OnnxRunner
from llm.models.built import load_built
from tests.llm.tiny import write_tiny_gguf


@dataclass(frozen=True)
class Point:
    x: Tensor
    num_tokens: int = 1


def points(start: int) -> Iterator[Point]:
    step = start
    while True:
        yield Point(torch.randn(8, 4, generator=torch.Generator().manual_seed(step)))
        step += 1


def run(module: nn.Module, plan: Plan) -> bool:
    return train(
        module,
        plan,
        points,
        lambda point: ((module(point.x) - point.x.sum(1, keepdim=True)) ** 2).mean(),
        lambda: {"validation_loss": 0.5},
        learning_rate=0.05,
    )


def line() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def test_it_learns_and_writes_down_how(tmp_path: Path) -> None:
    module = line()
    assert run(module, Plan(tmp_path, 200))
    records = [json.loads(x) for x in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == list(range(1, 201))
    assert records[-1]["loss"] < 0.02 * records[0]["loss"]
    assert [r["step"] for r in records if "validation_loss" in r] == [100, 200]
    assert (tmp_path / "losses.png").stat().st_size > 1000


def test_a_run_cut_anywhere_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = line()
    run(whole, Plan(tmp_path / "whole", 30))
    clock = iter(range(10_000))
    monkeypatch.setattr(stages.time, "monotonic", lambda: float(next(clock)))
    num_runs, finished = 0, False
    while not finished:
        module = line()
        finished = run(module, Plan(tmp_path / "cut", 30, minutes=0.5, resume=num_runs > 0))
        num_runs += 1
    assert num_runs > 3
    for a, b in zip(whole.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_run_stays_finished(tmp_path: Path) -> None:
    run(line(), Plan(tmp_path, 5))
    module = line()
    assert run(module, Plan(tmp_path, 5, resume=True))
    assert not torch.equal(module.weight, line().weight)


def test_the_rate_rises_and_falls(tmp_path: Path) -> None:
    plan = Plan(tmp_path, 300)
    rates = [plan.share_of_rate(step) for step in range(300)]
    top = rates.index(max(rates))
    assert max(rates) == 1
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, abs=0.01)


def test_both_stages_from_files_to_a_model_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "compile_layers", lambda layers: None)
    write_tiny_gguf(tmp_path / "model.gguf", seed=6)
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    lines = [
        {"turns": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "hello"}]}
        for n in range(60)
    ]
    (data / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert stages.speak(tmp_path, work, data, 3, float("inf"), resume=False)
    assert not stages.draft(tmp_path, work, data, 3, 0.0, resume=False)
    assert not (work / "draft.safetensors").exists()
    assert stages.draft(tmp_path, work, data, 3, float("inf"), resume=True)
    (work / "model.gguf").hardlink_to(tmp_path / "model.gguf")
    model = load_built(work)
    assert OnnxRunner(model, 64).num_drafts == 6
    losses = [json.loads(x)["loss"] for x in (work / "speak/losses.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
