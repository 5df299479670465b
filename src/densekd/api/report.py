"""`densekd.report`: a page about runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from densekd.display import output
from densekd.files import expand_home
from densekd.reports.write import write_report


def report(*folders: Path | str, out: Path | str = "report", quiet: bool = False) -> Path:
    """Make a page about runs, with tables and figures for a paper.

    Does what ``densekd report`` does.

    Args:
        folders: run folders, sweep folders, or folders that hold them; by default ``runs``.
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
    places = [expand_home(folder) for folder in folders or ("runs",)]
    with drawing(quiet=quiet) as on_progress:
        return write_report(places, expand_home(out), on_progress).page


@contextmanager
def drawing(*, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Show how many figures are drawn, and the package's warnings."""
    with output.show_warnings(output.console(stderr=True)):
        if quiet:
            yield None
        else:
            with output.show_progress("Drawing", "images") as on_progress:
                yield on_progress
