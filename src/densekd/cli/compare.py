"""``densekd compare``: finished runs side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import argument, command
from densekd.display import output

if TYPE_CHECKING:
    from rich.console import Console

    from densekd.reports.runs import ReportedRun


@command("densekd compare runs", "densekd compare runs --all --plot comparison.png")
def compare_command(
    folder: Annotated[
        Path, argument("Folder that holds run folders. Default: runs.", "FOLDER")
    ] = Path("runs"),
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracy over classes seen, as PNG, PDF or SVG.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show a second table with all other metrics.")
    ] = False,
) -> None:
    """Compare the finished runs in a folder."""
    from densekd.reports.compare import COMPARED, compare

    with output.show_warnings(output.console(stderr=True)):
        compared = compare(folder)
    table = output.table("run", numbers=(*COMPARED.values(), "minutes"))
    for row in compared:
        shares = [output.percent(row[measure]) for measure in COMPARED]
        table.add_row(output.safe(row["run"]), *shares, f"{row['minutes']:.1f}")
    console = output.console()
    console.print(table)
    console.print(
        "Accuracy on test images. average: mean of the accuracies after each task. The others are "
        "measured after the last task: last on all classes, base on those of the first task, new "
        "on those of the last task, old on all but these."
    )
    if every:
        _show_metrics(compared.runs, console)
    if plot is not None:
        compared.plot(plot)
        console.print(f"The plot is in {output.safe(plot)}.", soft_wrap=True)


def _show_metrics(runs: Sequence[tuple[str, "ReportedRun"]], console: "Console") -> None:
    from densekd.reports.overview import METRICS, NOTE_ON_METRICS

    titles = (f"{c.title} ({c.group}) %" if c.group else f"{c.title} %" for c in METRICS)
    table = output.table("run", numbers=titles)
    for label, run in runs:
        shares = (output.percent(run.measured(column.key)) for column in METRICS)
        table.add_row(output.safe(label), *shares)
    console.print(table)
    console.print(NOTE_ON_METRICS)
