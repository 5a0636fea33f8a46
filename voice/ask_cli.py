"""`ember ask`: one question from a file or typed, one answer as text and as a WAV file.

Only results go to stdout; errors and progress go to stderr.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from voice.assistant import Assistant
from voice.audio import AudioError, check_writable, read_audio, write_wav
from voice.config import Config
from voice.events import AnswerText, Heard, Samples, Speech, TurnEnded, TurnOutcome
from voice.pipeline import Pipeline

SAMPLE = Path(__file__).parent / "samples" / "capital_of_france.wav"
"""The recorded question that comes with Ember."""

EXIT_FAILED = 1
EXIT_NO_SPEECH = 3


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a recording or typed text, the other is None."""

    recording: Path | None
    text: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """All that came of one turn; `speech` has no samples where nothing was synthesised."""

    question: str
    answer: str
    speech: Samples
    ended: TurnEnded


def ask(config: Config, question: Question, output: Path | None, *, as_json: bool) -> int:
    """Answer one question and return the exit code: 0, 1 failed, 3 no speech heard.

    output: the WAV file to write, None for text only. as_json: print one JSON object instead of
    text and a table. Raises AudioError, ConfigError and ModelError before anything is written.
    """
    samples = None if question.recording is None else read_audio(question.recording)
    if output is not None:
        check_writable(output)
        if question.recording is not None and _is_same_file(question.recording, output):
            raise AudioError(f"the answer would overwrite the question {output}; give another -o")
    assistant = Assistant.load(config)
    try:
        speak = output is not None
        answer = asyncio.run(_answer(assistant.pipeline, samples, question.text, speak=speak))
    finally:
        assistant.close()
    if (code := _problem(answer, output)) == EXIT_FAILED:
        return code
    if code == 0 and output is not None:
        write_wav(output, answer.speech, assistant.pipeline.output_rate_hz)
    if as_json:
        written = output if code == 0 else None
        typer.echo(json.dumps(_as_json(answer, written, assistant.load_s), ensure_ascii=False))
    elif code == 0:
        _print(answer, output, assistant)
    return code


async def _answer(
    pipeline: Pipeline, samples: Samples | None, text: str | None, *, speak: bool
) -> Answer:
    question = answer = ""
    pieces: list[Samples] = [np.zeros(0, np.float32)]
    async for event in pipeline.run(1, samples, text, (), speak=speak):
        match event:
            case Heard(_, text):
                question = text
            case AnswerText(_, text):
                answer += text
            case Speech(_, piece, _, _):
                pieces.append(piece)
            case TurnEnded():
                return Answer(question, answer.strip(), np.concatenate(pieces), event)
            case _:
                pass
    raise AssertionError("a turn ended without TurnEnded")


def _problem(answer: Answer, output: Path | None) -> int:
    """Say on stderr what kept the question from being answered; return the exit code."""
    match answer.ended.outcome:
        case TurnOutcome.NO_SPEECH:
            typer.echo("no speech heard: nothing was asked", err=True)
            return EXIT_NO_SPEECH
        case TurnOutcome.ANSWERED if answer.answer and (answer.speech.size or output is None):
            return 0
        case TurnOutcome.ANSWERED:
            typer.echo("error: the answer holds nothing that can be spoken", err=True)
        case TurnOutcome.CANCELLED:
            typer.echo("error: the answer was cancelled", err=True)
        case TurnOutcome.FAILED:
            typer.echo(f"error: {answer.ended.error}", err=True)
    return EXIT_FAILED


def _as_json(answer: Answer, output: Path | None, load_s: float) -> dict[str, Any]:
    usage = answer.ended.usage
    return {
        "outcome": answer.ended.outcome.value,
        "question": answer.question,
        "answer": answer.answer,
        "wav": None if output is None else str(output),
        "times": asdict(answer.ended.times),
        "usage": usage and {**asdict(usage), "tokens_per_forward": usage.tokens_per_forward},
        "load_s": load_s,
    }


def _print(answer: Answer, output: Path | None, assistant: Assistant) -> None:
    typer.echo(f"You:   {answer.question}")
    typer.echo(f"Ember: {answer.answer}")
    if output is not None:
        duration_s = len(answer.speech) / assistant.pipeline.output_rate_hz
        typer.echo(f"wrote {output} ({duration_s:.1f} s); ready in {assistant.load_s:.1f} s\n")
    else:
        typer.echo(f"ready in {assistant.load_s:.1f} s\n")
    Console().print(_table(answer.ended))


def _table(ended: TurnEnded) -> Table:
    """The times of the stages and what the language model took, as one table."""
    times = ended.times
    table = Table("stage", "time", box=None, header_style="bold", pad_edge=False)
    table.columns[1].justify = "right"
    for stage, value_ms in (
        ("length of the question", times.audio_ms),
        ("voice activity detection", times.vad_ms),
        ("speech recognition", times.asr_ms),
        ("end of speech to first committed text", times.first_commit_ms),
        ("end of speech to whole answer as text", times.llm_ms),
        ("end of speech to first audio", times.first_audio_ms),
        ("end of speech to end of answer", times.total_ms),
    ):
        if value_ms is not None:
            table.add_row(stage, f"{value_ms:.0f} ms")
    if ended.usage is not None:
        table.add_row("forwards of the language model", str(ended.usage.num_forwards))
        table.add_row("tokens per forward", f"{ended.usage.tokens_per_forward:.2f}")
    return table


def _is_same_file(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)
