"""The command ``densekd``: the only place that reads arguments or prints."""

from typing import Any

import typer
from typer.core import TyperGroup

from densekd.cli import compare, data, methods, run


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
app.command(epilog=run.EXAMPLES)(run.run)
app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command(epilog=methods.EXAMPLES)(methods.methods)
app.add_typer(run.config, name="config")
app.add_typer(data.app, name="data")
