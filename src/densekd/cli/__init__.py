"""The command ``densekd``: the only place that reads arguments."""

from typing import Any

import typer
from typer.core import TyperGroup

from densekd.cli import (
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


class _OneLineErrors(TyperGroup):
    """Shows expected errors as one sentence instead of a traceback, and exits with code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of the output is gone; typer handles that
            raise
        except (ValueError, OSError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    help="Teach image classifiers new classes without forgetting old ones, by dense distillation.",
)
_MODELS, _BENCHMARKS = "Your own model", "Benchmarks and the paper's experiments"

for _command in (
    learn.learn_command,
    predict.predict_command,
    model.info_command,
    model.history_command,
    model.undo_command,
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
