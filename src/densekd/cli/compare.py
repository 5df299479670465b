"""``densekd compare``: finished runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from densekd.cli import output

EXAMPLES = """Examples:

densekd compare runs

densekd compare runs --plot comparison.png"""


def compare(
    folder: Annotated[
        Path, typer.Argument(help="A folder with run folders, as `densekd run --out` makes it.")
    ] = Path("runs"),
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracy by classes seen, as PNG, PDF or SVG.")
    ] = None,
) -> None:
    """Compare the runs in a folder: what they reached, and what they kept."""
    from densekd.report.compare import finished_runs, plot_runs
    from densekd.report.overview import AVERAGE

    runs = finished_runs(folder)
    numbers = ("average %", "last %", "base %", "old %", "new %", "minutes")
    table = output.table("run", numbers=numbers)
    measures = (AVERAGE, "accuracy", "base_accuracy", "old_accuracy", "new_accuracy")
    for label, run in reversed(runs):
        shares = [output.percent(run.measured(measure)) for measure in measures]
        table.add_row(output.safe(label), *shares, f"{run.seconds / 60:.1f}")
    console = output.console()
    console.print(table)
    console.print(
        "average: over the models after each task; the others: after the last, on the test images "
        "of all classes, of those learned first, of all but the last task's, of the last task's.",
    )
    if plot is not None:
        plot_runs(runs, plot)
        console.print(f"The curves are in {output.safe(plot)}.", soft_wrap=True)
