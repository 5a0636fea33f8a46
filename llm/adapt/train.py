"""The two stages, from files to files, and the loop that they share.

The loop: cosine schedule, checkpoints, progress, and a picture of the loss. It knows nothing of
models or data: it is given a module, a loss for each batch, and a plan.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, track
from torch import Tensor, nn

from llm.adapt.data import (
    DATA,
    Batch,
    Dialogue,
    Example,
    batches,
    encode,
    endless,
    read_dialogues,
    split,
)
from llm.adapt.model import COMPUTE, Backbone, Drafter, compile_layers
from llm.adapt.objective import Observed, draft_loss, observe, speak_loss
from llm.chat_template import ChatTemplate
from llm.models import ember_135m
from llm.models.adapted import (
    DRAFT,
    SPEAK,
    TEMPLATE,
    AdaptedCheckpoint,
    drafter_metadata,
    save_adapter,
)
from llm.models.gguf import GgufFile
from llm.models.spec import DrafterConfig
from llm.models.transformer import Weights
from llm.tokenizer import Tokenizer

SPEAK_RANK = 64
SPEAK_RATE, DRAFT_RATE = 2e-3, 1e-3
"""Learning rates of the two stages."""

TOKENS_PER_BATCH = 3072
NUM_DRAFT_TOKENS = 12_288
"""Tokens that the drafter can draft: more cost time and are hardly ever met."""

SAVE_EVERY_S = 180
LOSSES = "losses.jsonl"
VALIDATE_EVERY = 100
WARMUP_STEPS = 30
MAX_GRADIENT = 1.0


def speak(
    base: Path, work: Path, data: Path | None, epochs: float, minutes: float, *, resume: bool
) -> bool:
    """Stage one. Returns whether it was finished, and then speak.safetensors is in `work`.

    Raises CheckpointError and ValueError for a base or data that cannot be used.
    """
    checkpoint = GgufFile(base / "model.gguf")
    work.mkdir(parents=True, exist_ok=True)
    (work / TEMPLATE).write_text(ember_135m.TEMPLATE.read_text("utf-8"), "utf-8")
    tokenizer = Tokenizer(checkpoint.tokenizer)
    training, validation = _examples(data, tokenizer, _template(work))
    folder = work / "speak"
    steps = round(epochs * len(batches(training, TOKENS_PER_BATCH, seed=0)))
    plan = Plan(folder, steps, minutes=minutes, resume=resume)
    if not train_speech(checkpoint, training, validation, plan):
        return False
    save_adapter(work / SPEAK, _trained(folder), {})
    return True


def draft(
    base: Path, work: Path, data: Path | None, epochs: float, minutes: float, *, resume: bool
) -> bool:
    """Stage two. Returns whether it was finished, and then draft.safetensors is in `work`.

    Raises CheckpointError and ValueError for a base or data that cannot be used.
    """
    checkpoint = AdaptedCheckpoint(GgufFile(base / "model.gguf"), work)
    tokenizer = Tokenizer(checkpoint.tokenizer)
    training, validation = _examples(data, tokenizer, _template(work))
    config = drafter_config(checkpoint.config.num_layers, training)
    folder = work / "draft"
    seen, held_out = observe_all(checkpoint, config, training, validation, folder)
    plan = Plan(folder, round(epochs * seen.num_batches), minutes=minutes, resume=resume)
    torch.manual_seed(0)
    if not train_drafter(Drafter(checkpoint, config), seen, held_out, plan):
        return False
    save_adapter(work / DRAFT, _trained(folder), drafter_metadata(config))
    return True


def drafter_config(num_layers: int, training: list[Example]) -> DrafterConfig:
    """Three layers that read the states of three depths, and six drafts."""
    depths = tuple(sorted({max(1, num_layers // 3), max(1, 2 * num_layers // 3), num_layers}))
    return DrafterConfig(
        num_layers=min(3, num_layers),
        depths=depths,
        num_drafts=6,
        token_ids=common_tokens(training, NUM_DRAFT_TOKENS),
    )


def observe_all(
    checkpoint: AdaptedCheckpoint,
    config: DrafterConfig,
    training: list[Example],
    validation: list[Example],
    folder: Path,
) -> tuple[Observations, Observations]:
    """Run the speaking model over all texts, unless that was done: (training, validation)."""
    kept = []
    backbone = Backbone(checkpoint, 0).requires_grad_(False).to(COMPUTE)
    compile_layers(backbone.layers)
    for name, examples in (("training", training), ("validation", validation)):
        texts: list[Batch] = batches(examples, TOKENS_PER_BATCH, seed=0)
        observations = Observations(folder / name, len(texts))
        observations.fill(backbone, texts, config.depths)
        kept.append(observations)
    return kept[0], kept[1]


def _examples(
    data: Path | None, tokenizer: Tokenizer, template: ChatTemplate
) -> tuple[list[Example], list[Example]]:
    def encoded(dialogues: list[Dialogue]) -> list[Example]:
        return [encode(dialogue, tokenizer, template) for dialogue in dialogues]

    training, validation = split(read_dialogues(data or DATA))
    if not training or not validation:
        raise ValueError("there are too few dialogues to keep some for validation; 100 are enough")
    return encoded(training), encoded(validation)


def _template(work: Path) -> ChatTemplate:
    return ChatTemplate((work / TEMPLATE).read_text("utf-8"))


def _trained(folder: Path) -> dict[str, NDArray[np.float32]]:
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["module"]
    return {name: values.numpy() for name, values in state.items() if values.numel()}


def train_speech(
    weights: Weights, training: Sequence[Example], validation: Sequence[Example], plan: Plan
) -> bool:
    """Fine-tune on the dialogues. Returns whether the plan was finished."""
    torch.manual_seed(0)
    model = Backbone(weights, SPEAK_RANK)
    compile_layers(model.layers)
    held_out = batches(validation, 4096, seed=0)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        counts = [int(batch.spoken[:, 1:].sum()) for batch in held_out]
        losses = [
            float(speak_loss(model, batch)) * n for batch, n in zip(held_out, counts, strict=True)
        ]
        return {"validation_loss": round(sum(losses) / sum(counts), 4)}

    return train(
        model,
        plan,
        lambda start: endless(training, TOKENS_PER_BATCH, start),
        lambda batch: speak_loss(model, batch),
        validate,
        learning_rate=SPEAK_RATE,
    )


def train_drafter(
    drafter: Drafter, observed: Observations, held_out: Observations, plan: Plan
) -> bool:
    """Train on what was observed. Returns whether the plan was finished."""

    compile_layers(drafter.layers)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        results = [draft_loss(drafter, held_out.read(i)) for i in range(held_out.num_batches)]
        useful = torch.stack([u for _, u in results]).mean(0)
        return {
            "validation_loss": round(float(torch.stack([x for x, _ in results]).mean()), 4),
            "tokens_per_forward": round(1 + float(useful.sum()), 3),
        } | {f"draft_{i}": round(float(x), 3) for i, x in enumerate(useful, start=1)}

    return train(
        drafter,
        plan,
        observed.endless,
        lambda o: draft_loss(drafter, o)[0],
        validate,
        learning_rate=DRAFT_RATE,
    )


class Observations:
    """Observed batches on disk: the frozen model runs once, and each epoch costs the drafter only.

    folder: gets one file for each batch, 10 MB for 3,000 tokens.
    """

    def __init__(self, folder: Path, num_batches: int) -> None:
        self._folder = folder
        self.num_batches = num_batches

    def fill(self, model: Backbone, batches: Sequence[Batch], depths: Sequence[int]) -> None:
        """Observe the batches that were not observed before, with a progress bar."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, batch in track(list(enumerate(batches)), "reading what the model makes of it"):
            path = self._path(number)
            if path.is_file():
                continue
            seen = observe(model, batch, depths)
            partial = path.with_suffix(".partial")
            torch.save((batch.ids, batch.spoken, seen.states, seen.best), partial)
            partial.replace(path)

    def read(self, number: int) -> Observed:
        """The batch with this number."""
        ids, spoken, states, best = torch.load(self._path(number), weights_only=True)
        return Observed(Batch(ids, spoken), states, best)

    def endless(self, start: int) -> Iterator[Observed]:
        """Epoch after epoch in random order, from batch number `start` on."""
        for number in itertools.count(start):
            epoch, index = divmod(number, self.num_batches)
            order = random.Random(epoch).sample(range(self.num_batches), self.num_batches)
            yield self.read(order[index])

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05}.pt"


def common_tokens(examples: Sequence[Example], most: int) -> tuple[int, ...]:
    """The tokens that occur most often, in order of their ids."""
    counts = Counter(itertools.chain.from_iterable(example.ids for example in examples))
    return tuple(sorted(token for token, _ in counts.most_common(most)))


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
    minutes: float = math.inf
    resume: bool = False

    def share_of_rate(self, step: int) -> float:
        """Of the learning rate, at a step: linear warm-up, then a cosine down to a twentieth."""
        warmup = min(WARMUP_STEPS, self.num_steps // 10 + 1)
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, self.num_steps - warmup)
        return 0.05 + 0.95 * (1 + math.cos(math.pi * min(1, done))) / 2


def train(
    module: nn.Module,
    plan: Plan,
    batches: Callable[[int], Iterator[Item]],
    loss: Callable[[Item], Tensor],
    validate: Callable[[], dict[str, float]],
    *,
    learning_rate: float,
) -> bool:
    """Train the module's parameters. Returns whether the plan was finished.

    batches: from a batch number on. loss: one number to make small. validate: named figures on
    text that was not trained on, written down every hundred steps.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    parameters = [p for p in module.parameters() if p.requires_grad and p.numel()]
    optimiser = torch.optim.AdamW(parameters, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    step = _resume(plan, module, optimiser) if plan.resume else 0
    if not step:
        (plan.folder / LOSSES).write_text("")
    started = saved = time.monotonic()
    with _progress() as progress:
        bar = progress.add_task("training", total=plan.num_steps, completed=step, loss="", speed="")
        for batch in batches(step):
            if step >= plan.num_steps or time.monotonic() - started > plan.minutes * 60:
                break
            begun = time.monotonic()
            value = _update(
                optimiser, parameters, loss(batch), learning_rate * plan.share_of_rate(step)
            )
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
    with (folder / LOSSES).open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def _draw(folder: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package, for this only

    lines = (folder / LOSSES).read_text("utf-8").splitlines()
    records = {record["step"]: record for record in map(json.loads, lines)}
    if not records:
        return
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
