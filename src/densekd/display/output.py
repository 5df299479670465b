"""Consoles, tables, numbers and progress bars, for a terminal or a file."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import rich.progress as bars
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from densekd.files import to_json
from densekd.text import escape_controls as escape_controls
from densekd.training.callbacks import forward_warnings

if TYPE_CHECKING:
    from densekd.model.store import Update

# Without a terminal, progress is printed as lines, at most one in so many seconds.
_SECONDS_PER_LINE = 10.0


def console(stderr: bool = False) -> Console:
    """A console without markup, so that names print as they are. Files get unwrapped lines."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else 10_000
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


def print_json(value: object) -> None:
    """Print a value as JSON on stdout."""
    typer.echo(to_json(value), nl=False)


def table(*titles: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table. The columns ``numbers`` come last and are aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        made.add_column(title, overflow="fold")
    for title in numbers:
        made.add_column(title, justify="right")
    return made


def safe(name: str | Path) -> str:
    """A name, escaped if it has characters that a terminal can't show."""
    text = str(name)
    return text if text.isprintable() else repr(text)


def number(value: float) -> str:
    """A whole number: 1,797."""
    return f"{value:,.0f}"


def local_time(when: str) -> str:
    """A time in ISO 8601 as date and minute here: 2026-01-31 14:05."""
    try:
        return datetime.fromisoformat(when).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return safe(when)


def count(value: int, noun: str, plural: str = "") -> str:
    """A number of things: 1 run, 1,797 runs."""
    return f"{number(value)} {noun if value == 1 else plural or f'{noun}s'}"


def name_list(classes: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    listed = classes if len(classes) <= most + 1 else classes[:most]
    rest = len(classes) - len(listed)
    return ", ".join(map(safe, listed)) + (f" and {number(rest)} more" if rest else "")


def update_text(update: "Update", noun: str = "", most: int = 3) -> str:
    """What an update did: ``learned cat, dog, and more of owl, from 30 images``.

    Args:
        update: it may have taught new classes, more images of known ones, both, or nothing.
        noun: the word for what it learned from, such as ``image``; if empty, no number is given.
        most: the number of names to list; see `name_list`.
    """
    if update.edit is not None:
        return str(update.edit)
    new, more = (name_list(names, most) for names in (update.learned, update.replayed))
    parts = [text for text, has in ((new, new), (f"more of {more}", more)) if has]
    images = f"{',' if len(parts) > 1 else ''} from {count(update.images, noun)}" if noun else ""
    return f"learned {', and '.join(parts) or '(erased)'}{images}"


def duration(seconds: float) -> str:
    """A time in suitable units: 0.4 s, 34 s, 5 min 8 s, 2 h 30 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


class Pace:
    """Limits how often lines are printed."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def due(self) -> bool:
        """Whether to print a line now; if so, the wait for the next begins."""
        if time.monotonic() - self.last < _SECONDS_PER_LINE:
            return False
        self.last = time.monotonic()
        return True


@contextmanager
def show_progress(
    label: str, unit: Literal["bytes", "images"]
) -> Iterator[Callable[[int, int], None]]:
    """Give a function of done and total that shows progress on stderr, as a bar or as lines."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        pace = Pace()

        def say(done: int, total: int) -> None:
            if pace.due():
                typer.echo(f"{label}: {share(done, total)} {unit}", err=True)

        yield say
        return
    amount = bars.DownloadColumn() if unit == "bytes" else bars.MofNCompleteColumn()
    text = bars.TextColumn("{task.description}", markup=False)
    columns = (text, bars.BarColumn(), amount, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=screen, transient=True) as bar:
        # Hidden until there is progress: some sources are read in no time.
        task = bar.add_task(label, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def share(done: int, total: int) -> str:
    """How much is done: 30 of 120 (25%), or only 30 if the total is unknown, given as 0."""
    return f"{number(done)} of {number(total)} ({done / total:.0%})" if total else number(done)


def percent(value: float | None) -> str:
    """A share in percent, without the sign: 71.2. A dash for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def show_warnings(screen: Console) -> AbstractContextManager[None]:
    """Print the package's warnings as lines, above a bar if there is one."""
    return forward_warnings(
        lambda text: screen.print(f"Warning: {escape_controls(text)}", soft_wrap=True)
    )
