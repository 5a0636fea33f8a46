"""`ember bench model`: what the language model says, judged by rule, and how fast it drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from llm.adapt.data import DATA, Dialogue, read_dialogues, split
from llm.bench import machine_limits, model_quality
from llm.bench.answers import Question, read_questions
from llm.bench.engine_speed import Subject
from llm.bench.model_quality import Judged
from llm.bench.report import Report
from llm.chat_template import ChatTemplate
from llm.config import EngineConfig
from llm.engine.engine import Engine, masks_behind
from llm.engine.load import spec_for
from llm.engine.runner_onnx import OnnxRunner
from llm.models.built import BuiltModel, load_built
from llm.tokenizer import Tokenizer
from llm.types import Committed, Finished, Request, ToolCall

MAX_NEW_TOKENS = 120


def run(
    folder: Path,
    base: Path | None,
    config: EngineConfig,
    questions_folder: Path,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Ask the model in `folder` all questions, with and without drafts, and its base as well.

    base: folder of the unadapted model, which is shown the same template; None leaves it out.
    Raises CheckpointError where a model cannot be used, ValueError where there are no questions.
    """
    questions = read_questions(questions_folder, DATA / "tools_schema.json")
    held_out = split(read_dialogues())[1]
    model = load_built(folder, tell)
    ours, alone = folder.name, f"{folder.name}, one token at a time"
    judged: dict[str, list[Judged]] = {}
    losses: dict[str, float] = {}
    subject = _subject(model, config)
    tell(f"{folder.name}: held-out dialogues")
    losses[ours] = losses[alone] = _loss(subject, held_out)
    for name, num_drafts in ((ours, None), (alone, 0)):
        tell(f"{name}: {len(questions)} questions")
        judged[name] = _answers(subject, questions, num_drafts)
    if base is not None:
        unadapted = load_built(base, tell)
        template = model.tokenizer.chat_template
        tokenizer = replace(unadapted.tokenizer, chat_template=template)
        subject = _subject(replace(unadapted, tokenizer=tokenizer), config)
        tell(f"{base.name}: the same")
        losses[base.name] = _loss(subject, held_out)
        judged[base.name] = _answers(subject, questions, 0)
    report = Report(
        {
            "benchmark": "model",
            "model": folder.name,
            **machine_limits.describe_code(),
            "machine": machine_limits.describe_machine(),
            "threads": config.num_threads or machine_limits.num_cores(),
        }
    )
    report.tables += [
        model_quality.kinds_table(judged),
        model_quality.manners_table(judged, losses),
        model_quality.acceptance_table(ours, judged[ours]),
    ]
    others = judged[base.name] if base is not None else []
    report.targets = model_quality.targets(judged[ours], judged[alone], others)
    report.notes += [_failure(j) for j in judged[ours] if not j.passed]
    return report


def _subject(model: BuiltModel, config: EngineConfig) -> Subject:
    tokenizer = Tokenizer(model.tokenizer)
    spec = spec_for(model.tokenizer, tokenizer)
    room = config.max_context_tokens + masks_behind(spec, config)
    runner = OnnxRunner(model, room, 1, config.num_threads)
    template = ChatTemplate(model.tokenizer.chat_template)
    return Subject(runner, spec, tokenizer, template, replace(config, num_slots=1))


def _loss(subject: Subject, dialogues: Sequence[Dialogue]) -> float:
    return model_quality.held_out_loss(
        subject.runner, dialogues, subject.tokenizer, subject.template
    )


def _answers(
    subject: Subject, questions: Sequence[Question], num_drafts: int | None
) -> list[Judged]:
    with subject.engine(num_drafts) as engine:
        return asyncio.run(_ask_all(engine, questions))


async def _ask_all(engine: Engine, questions: Sequence[Question]) -> list[Judged]:
    return [await _ask(engine, question) for question in questions]


async def _ask(engine: Engine, question: Question) -> Judged:
    request = Request(question.messages, tools=question.tools, max_new_tokens=MAX_NEW_TOKENS)
    said, called = "", []
    async for event in engine.submit(request):
        match event:
            case Committed(text):
                said += text
            case ToolCall():
                called.append(event)
            case Finished(usage=usage, error=error):
                if error is not None:
                    raise RuntimeError(error)
            case _:
                pass
    return Judged(question, said.strip(), tuple(called), usage)


def _failure(judged: Judged) -> str:
    calls = " ".join(f"{call.name}({call.arguments})" for call in judged.calls)
    asked = judged.question.messages[-1].content
    return f"failed [{judged.question.kind}] {asked} -> {judged.text} {calls}".strip()
