"""`ember bench llm`: what the embedded model's engine does on this machine, in one run.

This file reads the clock, runs the threads and plays the engine's callers; what is measured and
what it means is in `forward_speed`, `engine_speed`, `peer_speed` and `endurance`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from llm.adapt.data import encode, read_dialogues, split
from llm.bench import endurance, engine_speed, forward_speed, machine_limits, peer_speed
from llm.bench.agreement import measure_agreement
from llm.bench.engine_speed import Answer, EnginePlan, Subject
from llm.bench.forward_speed import BLOCK_ROWS, ForwardPlan
from llm.bench.machine_limits import Work
from llm.bench.products import Products
from llm.bench.report import Report, Row, Table, Target
from llm.chat_template import ChatTemplate
from llm.config import EngineConfig, ember_home
from llm.engine.engine import Engine, masks_behind
from llm.engine.generation import Generation
from llm.engine.load import spec_for
from llm.engine.runner_onnx import OnnxRunner
from llm.models.built import BuiltModel, load_built, open_checkpoint
from llm.models.store import ModelStore
from llm.models_cli import pull_with_progress
from llm.tokenizer import Tokenizer
from llm.types import Committed, Finished, Request

WARM_UPS = 3
SOAK_AT_ONCE = 24
"""Requests under way in a soak: more than the engine's slots, so that some wait."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    forward: ForwardPlan
    engine: EnginePlan
    num_dialogues: int = 24


FULL = Plan(
    ForwardPlan(repeats=50),
    EnginePlan(num_turns=40, num_prompts=12, passes=3, curve_turns=40),
)
QUICK = Plan(
    ForwardPlan(repeats=12, contexts=(128, 1024), prefills=(256,)),
    EnginePlan(
        num_turns=20, num_prompts=4, passes=1, curve_turns=8, drafts=(0, 6), concurrent=(1, 16)
    ),
    num_dialogues=12,
)


def pull(name: str) -> Path:
    """The folder of the model `name`, fetched if it is missing. Raises the ModelErrors."""
    store = ModelStore(ember_home())
    pull_with_progress(store, [name])
    return store.path(name)


def tell(line: str) -> None:
    """A line of progress for the user, on stderr."""
    Console(stderr=True).print(line, style="dim", markup=False, highlight=False)


def run(
    folder: Path,
    config: EngineConfig,
    plan: Plan,
    *,
    peers: bool = True,
    llama_cpp: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure the model in `folder` (model.gguf).

    peers: whether others are measured as well. llama_cpp: folder with node-llama-cpp in its
    node_modules, None = the current one. tell: called with a line for the user at every stage.
    Raises CheckpointError where the model cannot be used.
    """
    threads, model, subject, runner = _load(folder, config, plan.engine.drafts, tell)
    report, client = Report(_header(folder, threads)), EngineClient()
    tell("memory")
    report.tables.append(machine_limits.memory_bandwidth(stopwatch, in_parallel, threads))
    tell("forwards")
    # The very options of the runner's session, so that the floor is that of its forwards.
    options = runner.sessions[1].get_session_options()
    products = Products(model.graphs[1], options, BLOCK_ROWS)
    read_gb_s = report.value("memory", "gb_s", kind="read", threads=threads)
    table, targets = forward_speed.measure_limits(
        runner, products, read_gb_s, stopwatch, plan.forward.repeats
    )
    report.tables.append(table)
    report.tables += forward_speed.measure_forwards(runner, stopwatch, plan.forward)
    tell("beside float32")
    table, accurate = _measure_agreement(folder, subject, plan)
    report.tables.append(table)
    tell("first text")
    report.tables.append(engine_speed.measure_first_text(subject, client, plan.engine))
    tell("single streams")
    report.tables.append(engine_speed.measure_single_stream(subject, client, plan.engine))
    tell("requests at once")
    report.tables.append(engine_speed.measure_concurrency(subject, client, plan.engine))
    tell("a long conversation")
    report.tables.append(engine_speed.measure_turns(subject, client, plan.engine))
    report.targets = targets + accurate + engine_speed.engine_targets(report)
    if peers:
        tell("peers")
        requests = engine_speed.peer_requests(plan.engine)
        prompts = [subject.encode(request) for request in requests]
        job = peer_speed.Job(folder / "model.gguf", prompts, plan.engine.answer_tokens, threads)
        table, report.notes = _measure_peers(subject, plan, job, llama_cpp)
        report.tables.append(table)
    return report


def _measure_agreement(folder: Path, subject: Subject, plan: Plan) -> tuple[Table, list[Target]]:
    """On as many held-out dialogues as the plan says, those too long for the model left out."""
    held_out = split(read_dialogues())[1][: plan.num_dialogues]
    encoded = [encode(d, subject.tokenizer, subject.template) for d in held_out]
    examples = [e for e in encoded if len(e.ids) <= subject.runner.context_length]
    return measure_agreement(subject.runner, open_checkpoint(folder), examples)


def soak(
    folder: Path,
    config: EngineConfig,
    num_requests: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Send many short requests, abort some at random, and report what the engine still holds.

    num_requests: 1 or more. Raises CheckpointError where the model cannot be used.
    """
    threads, model, subject, _ = _load(folder, config, (), tell)
    report = Report(_header(folder, threads))
    with subject.engine() as engine:
        # Each graph takes its memory when first needed; some may be only as the soak ebbs away.
        for size in model.graphs:
            warm = [engine_speed.question(i, max_new=2) for i in range(size)]
            EngineClient().together(engine, warm)
        reasons, memory, seconds = asyncio.run(_soak(engine, num_requests, tell))
        # Nothing outside the engine can see what it holds, and nothing but this needs to.
        ended = endurance.Ended(
            reasons,
            free_slots=len(engine._free_slots),
            num_slots=config.num_slots,
            held=len(engine._running) + len(engine._waiting),
            cache_bytes=engine._prefixes.num_bytes,
            cache_bound=config.prefix_cache_mb * 2**20,
        )
    report.tables, report.targets = endurance.soak_report(num_requests, memory, seconds, ended)
    return report


def print_report(report: Report, *, as_json: bool) -> None:
    """Print the tables, unless only JSON is wanted, and the JSON line."""
    if not as_json:
        report.draw(Console(width=None if Console().is_terminal else 120))
    typer.echo(report.json_line())


def stopwatch(work: Work, count: int) -> list[float]:
    """Milliseconds that each of `count` runs of the work takes, after some that are not counted."""
    for _ in range(min(WARM_UPS, count)):
        work()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1000)
    return times


def in_parallel(works: Sequence[Work]) -> None:
    """Do all the work at once, each part on a thread of its own."""
    if len(works) == 1:
        works[0]()
        return
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


class EngineClient:
    """The callers of an engine, on an event loop of their own."""

    def one_by_one(
        self, engine: Engine, requests: Sequence[Request], beside: Sequence[Request] = ()
    ) -> list[Answer]:
        """See `engine_speed.Client`."""
        return asyncio.run(_one_by_one(engine, requests, beside))

    def together(self, engine: Engine, requests: Sequence[Request]) -> tuple[list[Answer], float]:
        """See `engine_speed.Client`."""
        return asyncio.run(_together(engine, requests))


async def _one_by_one(
    engine: Engine, requests: Sequence[Request], beside: Sequence[Request]
) -> list[Answer]:
    others = [engine.submit(request) for request in beside]
    for other in others:
        # Its prompt is computed now, and it is decoding.
        await anext(other)
    answers = [await _ask(engine, request) for request in requests]
    for other in others:
        other.abort()
    endings = [await _finished(other) for other in others]
    assert all(ending.usage.num_completion_tokens for ending in endings)
    if any(ending.reason.value != "cancelled" for ending in endings):
        raise RuntimeError("a request that should run beside the others was over too soon")
    return answers


async def _together(engine: Engine, requests: Sequence[Request]) -> tuple[list[Answer], float]:
    started = time.perf_counter()
    answers = await asyncio.gather(*(_ask(engine, request) for request in requests))
    return answers, (time.perf_counter() - started) * 1000


async def _ask(engine: Engine, request: Request) -> Answer:
    admitted = time.perf_counter()
    texts, commits_ms = [], []
    async for event in engine.submit(request):
        match event:
            case Committed(text):
                texts.append(text)
                commits_ms.append((time.perf_counter() - admitted) * 1000)
            case Finished(usage=usage, error=error):
                if error is not None:
                    raise RuntimeError(error)
            case _:
                pass
    return Answer("".join(texts), tuple(commits_ms), usage)


async def _finished(generation: Generation) -> Finished:
    async for event in generation:
        last = event
    assert isinstance(last, Finished), "a generation ends with Finished"
    return last


async def _soak(
    engine: Engine, count: int, tell: Callable[[str], None]
) -> tuple[dict[str, int], list[int], float]:
    """Returns how many ended for which reason, resident bytes every hundredth, and seconds."""
    reasons: Counter[str] = Counter()
    memory: list[int] = []
    coming: Iterator[endurance.Visit] = endurance.visits(count)
    started = time.perf_counter()

    async def visitor() -> None:
        for visit in coming:
            reasons[(await _visit(engine, visit)).reason.value] += 1
            done = sum(reasons.values())
            if done * 100 // count > len(memory):
                memory.append(machine_limits.resident_bytes())
            if done % max(1, count // 10) == 0:
                tell(f"{done} of {count} requests")

    await asyncio.gather(*(visitor() for _ in range(SOAK_AT_ONCE)))
    memory.append(machine_limits.resident_bytes())
    return dict(reasons), memory, time.perf_counter() - started


async def _visit(engine: Engine, visit: endurance.Visit) -> Finished:
    generation = engine.submit(visit.request)
    if visit.abort_after == 0:
        generation.abort()
    num_events = 0
    async for event in generation:
        last = event
        num_events += 1
        if num_events == visit.abort_after:
            generation.abort()
    assert isinstance(last, Finished), "a generation ends with Finished"
    return last


def _load(
    folder: Path, config: EngineConfig, drafts: Sequence[int], tell: Callable[[str], None]
) -> tuple[int, BuiltModel, Subject, OnnxRunner]:
    """The model, ready to be measured with any of these numbers of drafts."""
    model = load_built(folder, tell)
    tokenizer = Tokenizer(model.tokenizer)
    spec = spec_for(model.tokenizer, tokenizer)
    config = replace(config, max_queue=max(config.max_queue, 2 * SOAK_AT_ONCE))
    most = max((config.num_draft_tokens, *drafts))
    room = masks_behind(spec, replace(config, num_draft_tokens=most))
    threads = config.num_threads or machine_limits.num_cores()
    # The curve by context goes to the model's limit, whatever the engine is set to.
    positions = max(config.max_context_tokens + room, model.config.context_length)
    runner = OnnxRunner(model, positions, config.num_slots, config.num_threads)
    template = ChatTemplate(model.tokenizer.chat_template)
    return threads, model, Subject(runner, spec, tokenizer, template, config), runner


def _header(folder: Path, threads: int) -> dict[str, Any]:
    return {
        "benchmark": "llm",
        "model": folder.name,
        **machine_limits.describe_code(),
        "machine": machine_limits.describe_machine(),
        "threads": threads,
    }


def _measure_peers(
    subject: Subject, plan: Plan, job: peer_speed.Job, llama_cpp: Path | None
) -> tuple[Table, list[str]]:
    """Table `peers`, Ember first, and a line for each peer that could not be measured."""
    rows, missing = [engine_speed.measure_as_peer(subject, EngineClient(), plan.engine)], []
    measures: list[Callable[[], Row]] = [
        partial(peer_speed.run_llama_cpp, job, llama_cpp),
        partial(peer_speed.run_transformers, job, stopwatch),
    ]
    for measure in measures:
        try:
            rows.append(measure())
        except peer_speed.PeerUnavailableError as error:
            missing.append(str(error))
    title = f"the same prompts and weights elsewhere, greedy, {job.threads} threads"
    return Table("peers", title, rows), missing
