"""`ember adapt`: own dialogues in, adapters out."""

from __future__ import annotations

import math
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from llm.models_cli import clear_errors

adapt_app = typer.Typer(
    help="Teach a language model to speak and to draft, from dialogues.", no_args_is_help=True
)

Base = Annotated[Path, typer.Option(metavar="FOLDER", help="Has the base as model.gguf.")]
Data = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Dialogues in *.jsonl. [default: Ember's own]")
]
Work = Annotated[Path, typer.Option(metavar="FOLDER", help="Gets checkpoints and the adapters.")]
Epochs = Annotated[float, typer.Option(min=0.01, help="How often each dialogue is seen.")]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after so many, with a checkpoint.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]


@adapt_app.command("speak")
def speak(  # noqa: PLR0917 - one for each flag
    base: Base,
    work: Work = Path("adapted"),
    data: Data = None,
    epochs: Epochs = 2,
    minutes: Minutes = None,
    resume: Resume = False,
) -> None:
    """Stage one: fine-tune on what the assistant says. Writes speak.safetensors."""
    _check_packages()
    with clear_errors():
        from llm.adapt import train  # noqa: PLC0415 - imports torch, 2 s

        finished = train.speak(base, work, data, epochs, minutes or math.inf, resume=resume)
    _tell(finished, work, "ember adapt draft")


@adapt_app.command("draft")
def draft(  # noqa: PLR0917 - one for each flag
    base: Base,
    work: Work = Path("adapted"),
    data: Data = None,
    epochs: Epochs = 8,
    minutes: Minutes = None,
    resume: Resume = False,
) -> None:
    """Stage two: train the drafter on the speaking model. Writes draft.safetensors."""
    _check_packages()
    with clear_errors():
        from llm.adapt import train  # noqa: PLC0415 - imports torch, 2 s

        finished = train.draft(base, work, data, epochs, minutes or math.inf, resume=resume)
    if finished and not (work / "model.gguf").exists():
        shutil.copy(base / "model.gguf", work / "model.gguf")
    _tell(finished, work, f"ember chat with llm_model = '{work}'")


def _check_packages() -> None:
    """Before hours of training, not after them."""
    if find_spec("matplotlib") is None:
        typer.echo("error: training needs `pip install 'ember-voice[train]'`", err=True)
        raise typer.Exit(1)


def _tell(finished: bool, work: Path, then: str) -> None:
    if finished:
        typer.echo(f"done; the adapters are in {work}, see losses.png there; next: {then}")
    else:
        typer.echo("stopped with a checkpoint; the same command with --resume goes on")
