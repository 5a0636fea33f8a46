"""The `ember` command.

Models and servers are imported by the command that needs them: `ember --help` must not wait
seconds for torch.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llm.adapt_cli import adapt_app
from llm.config import ConfigError, build
from llm.keys_cli import keys_app
from llm.models_cli import models_app
from voice.config import Config

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _Commands(TyperGroup):
    """Turns what can go wrong into one line and an exit code, for every command alike."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _exit(error, EXIT_USAGE) from error
        except BrokenPipeError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, typer.Exit) or not isinstance(error, (OSError, *_known_errors())):
                raise
            raise _exit(error, EXIT_FAILED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error


app = typer.Typer(
    name="ember",
    cls=_Commands,
    help="Ember, a voice assistant in one process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
app.add_typer(adapt_app, name="adapt")
bench_app = typer.Typer(help="Measure Ember on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"ember {version('ember-voice')}")
        except PackageNotFoundError:
            typer.echo("ember (run from its sources, not installed)")
        raise typer.Exit


@app.callback()
def _settings(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with settings.")
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    ctx.obj = config


@app.command()
def ask(  # noqa: PLR0917 - one for each flag
    ctx: typer.Context,
    question: Annotated[
        Path | None, typer.Argument(metavar="[QUESTION.wav]", help="A recorded question.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where the spoken answer goes. [default: answer.wav]"),
    ] = None,
    say: Annotated[str | None, typer.Option(help="A typed question instead.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Ask the recorded sample.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Answer in text only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer one question, as text and as a WAV file."""
    if [question is not None, say is not None, sample].count(True) != 1:
        raise typer.BadParameter("give one question: a WAV file, --say TEXT or --sample")
    if say is not None and not say.strip():
        raise typer.BadParameter("--say needs a question, not an empty text")
    if text and output is not None:
        raise typer.BadParameter("--text writes no WAV file; leave out -o or --text")
    config = _config(ctx)
    from voice import ask_cli  # noqa: PLC0415 - imports torch, 2 s

    recording = ask_cli.SAMPLE if sample else question
    wav = None if text else output or Path("answer.wav")
    asked = ask_cli.Question(recording, say)
    raise typer.Exit(ask_cli.ask(config, asked, wav, as_json=as_json))


@app.command()
def up(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one.")] = None,
    without_keys: Annotated[
        bool | None, typer.Option("--without-keys", help="Let others in without a key.")
    ] = None,
) -> None:
    """Serve the web page, the voice WebSocket and the OpenAI routes."""
    config = _config(ctx, host=host, port=port, without_keys=without_keys)
    from voice.gateway.app import serve  # noqa: PLC0415 - imports torch, 2 s

    raise typer.Exit(serve(config))


@app.command()
def chat(ctx: typer.Context) -> None:
    """Talk to the language model in the terminal."""
    config = _config(ctx)
    from rich.console import Console  # noqa: PLC0415 - only needed here

    from llm.chat_cli import read_line_from_terminal, run_chat  # noqa: PLC0415 - only needed here
    from voice.assistant import load_language_model  # noqa: PLC0415 - imports torch, 2 s

    engine = load_language_model(config)
    try:
        run_chat(
            engine,
            read_line_from_terminal,
            Console(),
            system_prompt=config.system_prompt,
            max_new_tokens=config.max_answer_tokens,
        )
    finally:
        engine.close()


@bench_app.command("llm")
def bench_llm(  # noqa: PLR0917 - one for each flag
    ctx: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="A minute instead of five.")] = False,
    soak: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Look for leaks with N short requests instead."),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure llama.cpp and transformers too.")] = True,
    node: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where node-llama-cpp is installed. [default: here]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON line.")] = False,
) -> None:
    """Measure the language model: tables, then one JSON line."""
    config = _config(ctx)
    from llm.bench import run as bench  # noqa: PLC0415 - imports ONNX, 1 s

    folder = bench.pull(config.llm_model)
    if soak is not None:
        report = bench.soak(folder, config.engine, soak, bench.tell)
    else:
        plan = bench.QUICK if quick else bench.FULL
        report = bench.run(
            folder, config.engine, plan, peers=peers, llama_cpp=node, tell=bench.tell
        )
    bench.print_report(report, as_json=as_json)
    if soak is not None and not all(target.met for target in report.targets):
        raise typer.Exit(EXIT_FAILED)


@bench_app.command("model")
def bench_model(
    ctx: typer.Context,
    questions: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Questions in *.jsonl files.")
    ] = Path("tests/eval"),
    base: Annotated[
        str, typer.Option(help="The unadapted model beside it; '' for none.")
    ] = "smollm2-135m-instruct",
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON line.")] = False,
) -> None:
    """Judge what the language model says, and count the forwards: tables, then one JSON line."""
    config = _config(ctx)
    from llm.bench import run as bench  # noqa: PLC0415 - imports ONNX, 1 s
    from llm.bench import run_model  # noqa: PLC0415 - imports torch, 2 s

    folder = bench.pull(config.llm_model)
    base_folder = bench.pull(base) if base else None
    report = run_model.run(folder, base_folder, config.engine, questions, bench.tell)
    bench.print_report(report, as_json=as_json)


@bench_app.command("voice")
def bench_voice(
    ctx: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="A minute instead of twenty.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON line.")] = False,
) -> None:
    """Measure spoken conversations in real time: tables, then one JSON line."""
    config = _config(ctx)
    from llm.bench.run import print_report, tell  # noqa: PLC0415 - imports ONNX, 1 s
    from voice.bench import run as bench  # noqa: PLC0415 - imports torch, 2 s

    report = bench.run(config, bench.QUICK if quick else bench.FULL, tell)
    print_report(report, as_json=as_json)


def _config(ctx: typer.Context, **flags: Any) -> Config:
    return build(Config, file=ctx.obj, environment=os.environ, flags=flags)


def _known_errors() -> tuple[type[Exception], ...]:
    # Where one of these was raised its module is loaded, so that this import costs nothing.
    from llm.models.errors import ModelError  # noqa: PLC0415 - see above
    from llm.types import InvalidRequestError, QueueFullError  # noqa: PLC0415 - see above
    from voice.audio import AudioError  # noqa: PLC0415 - see above

    return (AudioError, ModelError, InvalidRequestError, QueueFullError)


def _exit(error: Exception, code: int) -> typer.Exit:
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    return typer.Exit(code)


def main() -> None:
    """Run the `ember` command."""
    # Read by OpenMP when a model loads. Threads that spin while they wait take the cores that the
    # other models need: with one core busy, recognition then takes up to ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app()


if __name__ == "__main__":
    main()
