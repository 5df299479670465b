"""``densekd run`` and ``densekd config``: a benchmark run, and what it would be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from densekd.cli import output
from densekd.cli.run_options import RunOptions, takes_settings
from densekd.cli.signals import first_process, resumable

config = typer.Typer(no_args_is_help=True, help="See and check the settings of a run.")

EXAMPLES = """Examples:

densekd run

densekd run --data cifar100 --method rdkd-adaptive --steps 10 --epochs 30%

densekd run --data folder:~/photos --increment 5 --memory-total 500

densekd run --config mine.toml --seed 7 -o method.options.temperature=4

A run that was stopped goes on when the same command is given again."""


@takes_settings
def run(
    settings: RunOptions,
    out: Annotated[
        Path, typer.Option(help="The folder that has a folder for each run.", metavar="FOLDER")
    ] = Path("runs"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, all else on stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Learn the classes of a data set in several tasks, and see how well they are kept."""
    from densekd.files import to_json

    result = _result(settings, out, quiet or not first_process())
    if not first_process():
        return
    if json:
        typer.echo(to_json(result), nl=False)
    _show_result(result, output.console(stderr=json))


@config.command(
    "show",
    epilog="Examples:\n\ndensekd config show --data cifar100 --method gkd > gkd.toml"
    "\n\ndensekd config show --config gkd.toml --seed 7",
)
@takes_settings
def show_config(settings: RunOptions) -> None:
    """Print all settings of a run as TOML, those that weren't given too."""
    from densekd.config.schema import as_toml

    typer.echo(as_toml(settings.resolve()), nl=False)


@config.command("check", epilog="Example:\n\ndensekd config check mine.toml")
def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", show_default=False)],
) -> None:
    """Check that a file of settings can be used; ends with code 2 if not."""
    resolved = RunOptions(config=file).resolve()
    source, method = output.safe(resolved.data.source), resolved.method.name
    typer.echo(f"{output.safe(file)} is fine: {method} on {source} with {resolved.network}.")


def _result(settings: RunOptions, out: Path, quiet: bool) -> dict[str, Any]:
    from densekd.cli.run_progress import watching
    from densekd.runs.run import run, run_folder

    configuration = settings.resolve()
    if not quiet and (run_folder(configuration, out) / "result.json").exists():
        typer.echo("This run was finished before; here is its result.", err=True)
    with (
        resumable() as interrupts,
        watching(configuration, interrupts, quiet=quiet) as observer,
    ):
        return run(configuration, out, observer)


def _show_result(result: Mapping[str, Any], console: Console) -> None:
    numbers = ("classes", "all %", "base %", "old %", "new %", "seconds", "images/s")
    table = output.table("task", "learned", numbers=numbers)
    table.collapse_padding = True
    for step in result["steps"]:
        parts = ("accuracy", "base_accuracy", "old_accuracy", "new_accuracy")
        table.add_row(
            str(step["number"] + 1),
            output.names(step["classes"], most=2),
            output.number(step["classes_seen"]),
            *(output.percent(step[part]) for part in parts),
            f"{step['seconds']:,.1f}",
            output.number(step["images_per_second"]),
        )
    console.print(table)
    average = output.percent(result["average_incremental_accuracy"])
    forgetting = output.percent(result["forgetting"])
    console.print(f"Average incremental accuracy {average} %, forgetting {forgetting} points.")
    console.print(f"All of it is in {output.safe(result['folder'])}.", soft_wrap=True)
