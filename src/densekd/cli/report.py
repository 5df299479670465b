"""``densekd report``: what runs reached, as a page, tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from densekd.cli import output

EXAMPLES = """Examples:

densekd report runs

densekd report runs/cifar100-rdkd-1a2b3c4d5e6f other/runs --out paper/report

Unfinished runs are in it with what they have; give the command again for the rest."""


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, or folders of them, as `densekd run` and `densekd sweep` make them.",
            metavar="RUNS...",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Where the report goes; the files of an earlier one are replaced.")
    ] = Path("report"),
) -> None:
    """Make a page of runs to look at, and their tables and figures for a paper."""
    from densekd.report.write import write_report

    with (
        output.warnings(output.console(stderr=True)),
        output.progress("Drawing", "images") as progress,
    ):
        made = write_report(runs, out, progress)
    console = output.console()
    counted = f"{output.number(made.runs)} run{'s' * (made.runs != 1)}"
    unfinished = made.runs - made.finished
    left = f", {unfinished} of them unfinished" if unfinished else ""
    tables = f"{made.tables} tables as CSV, Markdown and LaTeX"
    figures = f"{made.figures} figures as PDF and PNG"
    console.print(f"{counted}{left}: {tables}, {figures}.", soft_wrap=True)
    console.print(f"Open {output.safe(made.page)}.", soft_wrap=True)
