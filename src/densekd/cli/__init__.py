"""The command ``densekd``: the only place that reads arguments."""

import platform
import tempfile
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import densekd
from densekd.allocator import keep_freed_memory
from densekd.cli import (
    check,
    compare,
    compress,
    data,
    edit,
    export,
    flatness,
    learn,
    methods,
    model,
    predict,
    report,
    run,
    serve,
    sweep,
    ui,
)
from densekd.display import output
from densekd.text import first_line

# click's base class of errors, taken from typer because its newer versions bundle their own click.
_CLICK_ERROR: Any = typer.BadParameter.__mro__[2]


class _OneLineErrors(TyperGroup):
    """Shows an error as one sentence: expected ones exit with code 2, others with code 3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Every command takes --debug, anywhere before a --; move it to the front.
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            rest = [arg for arg in args[:end] if arg != "--debug"]
            args = ["--debug", *rest, *args[end:]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        keep_freed_memory()  # before a thread gets its own memory pool
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _CLICK_ERROR, BrokenPipeError):  # typer handles these
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            expected = isinstance(error, ValueError | OSError)
            sentence = output.escape_controls(_text(error)) if expected else _unforeseen(error)
            typer.echo(f"Error: {sentence}", err=True)
            raise typer.Exit(2 if expected else 3) from error


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename} can't be used: {error.strerror}."
    return str(error)


def _unforeseen(error: Exception) -> str:
    """Describe an unexpected error in a sentence, and write its traceback to a file."""
    kind = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
    facts = f"densekd {densekd.__version__}, Python {platform.python_version()}\n"
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="densekd-error-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(facts + text)
    except OSError as full:
        name = f"not written ({full}), but --debug shows it"
    known = output.escape_controls(kind)
    return f"this should not happen ({known}); please report it. The report is {name}."


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    help="Teach image classifiers new classes without forgetting old ones, by dense distillation.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"densekd {densekd.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Take the options of all commands; `_OneLineErrors` reads ``debug``."""


_MODELS, _BENCHMARKS = "Your own model", "Benchmarks and the paper's experiments"

for _command in (
    learn.learn_command,
    predict.predict_command,
    model.info_command,
    model.history_command,
    model.undo_command,
    check.check_folder_command,
    edit.forget_command,
    edit.rename_command,
    edit.merge_command,
    export.export_command,
    serve.serve_command,
    ui.ui_command,
):
    _command.add_to(app, _MODELS)
for _command in (
    run.run_command,
    sweep.sweep_command,
    compare.compare_command,
    report.report_command,
    flatness.flatness_command,
    compress.compress_command,
    methods.methods_command,
):
    _command.add_to(app, _BENCHMARKS)
app.add_typer(run.config_app, name="config", rich_help_panel=_BENCHMARKS)
app.add_typer(data.data_app, name="data", rich_help_panel=_BENCHMARKS)
