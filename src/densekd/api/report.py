"""`densekd.report`: a page about runs."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from densekd.display import output
from densekd.files import expand_home
from densekd.reports.write import Report, write_report


def report(*folders: Path | str, out: Path | str = "report", quiet: bool = False) -> Path:
    """Make a page about runs, with tables and figures for a paper.

    Does what ``densekd report`` does.

    Args:
        folders: run folders, sweep folders, or folders that hold run folders; by default ``runs``.
        out: the folder of the report; files of an earlier one are replaced.
        quiet: show no progress.

    Returns:
        The page, an HTML file; its folder has ``tables`` and ``figures``.

    Raises:
        ValueError: there is no run.

    Example:
        >>> import densekd
        >>> _ = densekd.run(data="digits", method="gkd", steps=1, epochs=1, quiet=True)
        >>> page = densekd.report("runs", quiet=True)
        >>> page.as_posix(), (page.parent / "tables" / "comparison.tex").exists()
        ('report/index.html', True)
    """
    return draw_report([*map(expand_home, folders)], expand_home(out), quiet=quiet).page


def draw_report(places: Sequence[Path], out: Path, *, quiet: bool = False) -> Report:
    """Write a report while showing how many figures are drawn, and the package's warnings."""
    progress = nullcontext() if quiet else output.show_progress("Drawing", "images")
    with output.show_warnings(output.console(stderr=True)), progress as on_progress:
        return write_report(places or [Path("runs")], out, on_progress)
