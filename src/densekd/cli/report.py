"""``densekd report``: runs as a page, tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from densekd.cli.options import argument, command
from densekd.display import output


@command(
    "densekd report",
    "densekd report runs/cifar100-rdkd-1a2b3c4d5e6f other/runs --out paper/report",
    note="The report includes unfinished runs; repeat the command to update it.",
)
def report_command(
    runs: Annotated[
        list[Path] | None,
        argument(
            "Run folders, sweep folders, or folders that hold run folders. Default: runs.",
            "RUNS",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the report; files of an earlier report in it are replaced."),
    ] = Path("report"),
) -> None:
    """Make a page about runs, with tables and figures for a paper."""
    from densekd.api.report import draw_report

    made = draw_report(runs or [], out)
    console = output.console()
    unfinished = made.runs - made.finished
    left = f", {unfinished} of them unfinished" if unfinished else ""
    tables = f"{made.tables} tables as CSV, Markdown and LaTeX"
    figures = f"{made.figures} figures as PDF and PNG"
    console.print(f"{output.count(made.runs, 'run')}{left}: {tables}, {figures}.", soft_wrap=True)
    console.print(f"Open {output.safe(made.page)}.", soft_wrap=True)
