"""`ember keys`: who may use the server from elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from llm.api.auth import KeyFile
from llm.api.limits import Limits
from llm.config import keys_path

keys_app = typer.Typer(help="Make keys for the server, list them and take them back.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Who or what the key is for.")]
Rate = Annotated[int, typer.Option(min=0, help="In each minute, 0 = no limit.")]


@keys_app.command()
def add(
    name: Name,
    requests_per_minute: Rate = 0,
    input_tokens_per_minute: Rate = 0,
    output_tokens_per_minute: Rate = 0,
    concurrency: Annotated[int, typer.Option(min=0, help="Requests at once, 0 = no limit.")] = 0,
) -> None:
    """Make a key and print it. It is shown only now: the server keeps a hash."""
    limits = Limits(
        requests_per_minute, input_tokens_per_minute, output_tokens_per_minute, concurrency
    )
    typer.echo(KeyFile(keys_path()).add(name, limits))


@keys_app.command("list")
def list_keys() -> None:
    """Show the names of the keys and their limits."""
    table = Table("name", "requests/min", "input tokens/min", "output tokens/min", "at once")
    for key in KeyFile(keys_path()).read():
        limits = key.limits
        numbers = (
            limits.requests_per_minute,
            limits.input_tokens_per_minute,
            limits.output_tokens_per_minute,
            limits.concurrency,
        )
        table.add_row(key.name, *(f"{n:,}" if n else "no limit" for n in numbers))
    Console().print(table)


@keys_app.command()
def remove(name: Name) -> None:
    """Take a key back; a running server stops to accept it at once."""
    KeyFile(keys_path()).remove(name)
    typer.echo(f"removed {name}")
