"""The training loop: cosine schedule, checkpoints, progress, and a picture of the loss.

Knows nothing of models or data: it is given a module, a loss for each batch, and a plan.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

SAVE_EVERY_S = 180
VALIDATE_EVERY = 100
MAX_GRADIENT = 1.0


class Sized(Protocol):
    """What one step trains on."""

    @property
    def num_tokens(self) -> int:
        """How many tokens it holds, padding included."""


Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast.

    folder: gets checkpoint.pt, losses.jsonl and losses.png. num_steps: of the whole schedule.
    minutes: stop after so many, with a checkpoint. resume: go on from the folder's checkpoint.
    """

    folder: Path
    num_steps: int
    learning_rate: float
    num_warmup: int = 30
    minutes: float = math.inf
    resume: bool = False

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then a cosine down to a twentieth."""
        if step < self.num_warmup:
            return self.learning_rate * (step + 1) / self.num_warmup
        done = (step - self.num_warmup) / max(1, self.num_steps - self.num_warmup)
        return self.learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1, done))) / 2)


def train(
    module: nn.Module,
    plan: Plan,
    batches: Callable[[int], Iterator[Item]],
    loss: Callable[[Item], Tensor],
    validate: Callable[[], dict[str, float]],
) -> bool:
    """Train the module's parameters. Returns whether the plan was finished.

    batches: from a batch number on. loss: one number to make small. validate: named figures on
    text that was not trained on, written down every hundred steps.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    parameters = [p for p in module.parameters() if p.requires_grad and p.numel()]
    optimiser = torch.optim.AdamW(parameters, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    step = _resume(plan, module, optimiser) if plan.resume else 0
    started = saved = time.monotonic()
    with _progress() as progress:
        bar = progress.add_task("training", total=plan.num_steps, completed=step, loss="", speed="")
        for batch in batches(step):
            if step >= plan.num_steps or time.monotonic() - started > plan.minutes * 60:
                break
            begun = time.monotonic()
            value = _update(optimiser, parameters, loss(batch), plan.rate(step))
            step += 1
            speed = batch.num_tokens / (time.monotonic() - begun)
            record = {"step": step, "loss": round(value, 4), "tokens_per_s": round(speed)}
            if step % VALIDATE_EVERY == 0 or step == plan.num_steps:
                record |= validate()
            _note(plan.folder, record)
            progress.update(bar, completed=step, loss=f"{value:.3f}", speed=f"{speed:.0f}")
            if time.monotonic() - saved > SAVE_EVERY_S:
                _save(plan, module, optimiser, step)
                saved = time.monotonic()
    _save(plan, module, optimiser, step)
    _draw(plan.folder)
    return step >= plan.num_steps


def _update(
    optimiser: torch.optim.Optimizer, parameters: list[nn.Parameter], loss: Tensor, rate: float
) -> float:
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT)
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
    optimiser.zero_grad()
    return float(loss.detach())


def _save(plan: Plan, module: nn.Module, optimiser: torch.optim.Optimizer, step: int) -> None:
    """Complete or not at all: a run may end at any moment."""
    state = {"module": module.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
    partial = plan.folder / "checkpoint.partial"
    torch.save(state, partial)
    partial.replace(plan.folder / "checkpoint.pt")


def _resume(plan: Plan, module: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    path = plan.folder / "checkpoint.pt"
    if not path.is_file():
        return 0
    state = torch.load(path, weights_only=True)
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])


def _note(folder: Path, record: dict[str, float]) -> None:
    with (folder / "losses.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def _draw(folder: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package, for this only

    lines = (folder / "losses.jsonl").read_text("utf-8").splitlines()
    records = {record["step"]: record for record in map(json.loads, lines)}
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    for name in ("loss", "validation_loss"):
        points = [(step, record[name]) for step, record in records.items() if name in record]
        if points:
            axes.plot(*zip(*points, strict=True), label=name.replace("_", " "))
    axes.legend()
    figure.savefig(folder / "losses.png", dpi=120)


def _progress() -> Progress:
    columns = [TextColumn("{task.description} {task.completed}/{task.total}"), BarColumn()]
    columns += [TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s")]
    return Progress(*columns, TimeRemainingColumn())
