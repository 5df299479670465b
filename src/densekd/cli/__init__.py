"""The command ``densekd``: the only place that reads arguments or prints."""

from typing import Any

import typer
from typer.core import TyperGroup

from densekd.cli import (
    compare,
    compress,
    data,
    export,
    flatness,
    learn,
    methods,
    model,
    predict,
    report,
    run,
    sweep,
    ui,
)


class _Sentences(TyperGroup):
    """Shows what can't be done as one sentence, and ends with code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read the output has left, which typer knows about
            raise
        except (ValueError, OSError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Sentences,
    no_args_is_help=True,
    add_completion=False,
    help="Networks that learn new classes and keep the old ones, by dense distillation.",
)
_OWN = "A model of your own"
_BENCHMARKS = "Benchmarks and the paper's experiments"

for command, examples in (
    (learn.learn, learn.EXAMPLES),
    (predict.predict, predict.EXAMPLES),
    (model.info, model.INFO_EXAMPLES),
    (model.history, model.HISTORY_EXAMPLES),
    (model.undo, model.UNDO_EXAMPLES),
    (export.export, export.EXAMPLES),
    (ui.ui, ui.EXAMPLES),
):
    app.command(epilog=examples, rich_help_panel=_OWN)(command)
for command, examples in (
    (run.run, run.EXAMPLES),
    (sweep.sweep, sweep.EXAMPLES),
    (compare.compare, compare.EXAMPLES),
    (report.report, report.EXAMPLES),
    (flatness.flatness, flatness.EXAMPLES),
    (compress.compress, compress.EXAMPLES),
    (methods.methods, methods.EXAMPLES),
):
    app.command(epilog=examples, rich_help_panel=_BENCHMARKS)(command)
app.add_typer(run.config, name="config", rich_help_panel=_BENCHMARKS)
app.add_typer(data.app, name="data", rich_help_panel=_BENCHMARKS)
