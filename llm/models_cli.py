"""`ember models`: see, pull and check the models; and the progress bars of a pull.

Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from llm.config import ConfigError, ember_home
from llm.models.store import ModelError, ModelStore, UnknownModelError

models_app = typer.Typer(help="See, pull and check the models.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")]


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn errors about models and settings into one line on stderr and an exit code.

    1, or 2 for a name that does not exist, or 130 for Ctrl-C. Raises typer.Exit.
    """
    try:
        yield
    except (ModelError, ConfigError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UnknownModelError) else 1) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted: run the same command again to go on", err=True)
        raise typer.Exit(130) from error


def open_store() -> ModelStore:
    """The store of this user. Raises ConfigError if the registry cannot be used."""
    return ModelStore(ember_home())


def pull_with_progress(store: ModelStore, names: Sequence[str]) -> None:
    """Pull what is missing of the models `names`, showing progress on stderr.

    Silent if nothing is missing; bars in a terminal, else a line for each download. Raises the
    subclasses of ModelError, UnknownModelError before anything is pulled.
    """
    missing = [name for name in dict.fromkeys(names) if not store.is_complete(name)]
    if not missing:
        return
    console = Console(stderr=True)
    if console.is_terminal:
        _pull_with_bars(store, missing, console)
    else:
        _pull_with_lines(store, missing)


@models_app.command("list")
def list_models() -> None:
    """List the known models and whether they are here."""
    with clear_errors():
        store = open_store()
        rows = [
            (m.name, m.kind.value, m.licence, decimal(m.size), _state(store, m.name))
            for m in store.registry.models
        ]
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    table = Table("name", "kind", "licence", "size", "state", box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@models_app.command()
def pull(names: Names = None) -> None:
    """Download models; without a name, the default set."""
    with clear_errors():
        store = open_store()
        pull_with_progress(store, names or store.registry.default_names)


@models_app.command()
def verify(names: Names = None) -> None:
    """Hash the files of models; without a name, of all that are here."""
    with clear_errors():
        store = open_store()
        here = [m.name for m in store.registry.models if _state(store, m.name) != "not here"]
        problems = []
        for name in names or here:
            found = store.verify(name)
            typer.echo(f"{name}\t{'damaged' if found else 'right'}")
            problems += found
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


@models_app.command()
def path(name: str) -> None:
    """Print the folder of a model that is here."""
    with clear_errors():
        typer.echo(open_store().path(name))


def _state(store: ModelStore, name: str) -> str:
    missing = len(store.missing_files(name))
    if not missing:
        return "ready"
    return "not here" if missing == len(store.registry.find(name).files) else "incomplete"


def _pull_with_bars(store: ModelStore, names: Sequence[str], console: Console) -> None:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def on_progress(description: str, done_bytes: int, total_bytes: int | None) -> None:
            if description not in tasks:
                tasks[description] = progress.add_task(description, total=total_bytes)
            progress.update(tasks[description], completed=done_bytes, total=total_bytes)

        for name in names:
            store.ensure(name, on_progress)


def _pull_with_lines(store: ModelStore, names: Sequence[str]) -> None:
    said: set[str] = set()

    def on_progress(description: str, _done_bytes: int, total_bytes: int | None) -> None:
        if description not in said:
            said.add(description)
            size = "" if total_bytes is None else f": {decimal(total_bytes)}"
            typer.echo(f"pulling {description}{size}", err=True)

    for name in names:
        typer.echo(f"{name} is ready in {store.ensure(name, on_progress)}", err=True)
