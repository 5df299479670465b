"""What the live displays of runs, sweeps and updates share."""

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import rich.progress as bars
from rich.console import Console, RenderableType
from rich.text import Text

from densekd.display import output
from densekd.display.interrupts import Interrupts

_SECONDS_PER_DRAWING = 0.2  # in a notebook


class Bars(bars.Progress):
    """Progress bars, each with a label and an amount, and lines of details below them."""

    def __init__(self, console: Console, width: int = 24) -> None:
        self.details = ""
        label = bars.TextColumn("{task.description}", markup=False)
        amount = bars.TextColumn("{task.fields[amount]}", markup=False)
        super().__init__(label, bars.BarColumn(width), amount, console=console, transient=True)
        self._area: Any = None  # handle of a notebook's output, to replace it in place
        self._shown = 0.0

    def start(self) -> None:
        """Show the bars: on a terminal, or in a notebook, where rich would need ipywidgets."""
        if not self.console.is_jupyter:
            super().start()
            return
        from IPython.display import display

        self._area = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Remove the bars."""
        if self._area is None:
            super().stop()
        else:
            self._area.update({"text/html": "", "text/plain": ""}, raw=True)

    def update(self, *changes: Any, **fields: Any) -> None:
        """Change a bar; in a notebook also draw it, because no thread does."""
        super().update(*changes, **fields)
        if self._area is not None and time.monotonic() - self._shown > _SECONDS_PER_DRAWING:
            self.refresh()

    def refresh(self) -> None:
        """Draw the bars as they are now."""
        if self._area is None:
            super().refresh()
            return
        self._shown = time.monotonic()
        console = Console(file=io.StringIO(), width=100, record=True, force_jupyter=False)
        console.print(*self.get_renderables(), sep="\n")
        html = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>", clear=False)
        self._area.update({"text/html": html, "text/plain": console.export_text()}, raw=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bars, and the details if there are any."""
        yield from super().get_renderables()
        if self.details:
            yield Text(self.details, style="dim")


class Bar(Bars):
    """A single bar, for one activity at a time."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, width=32)
        # Hidden until there is something to show, which might never be in a short run.
        self.task = self.add_task("", total=None, visible=False, amount="")

    def draw(self, label: str, done: int = 0, total: int = 0, amount: str = "") -> None:
        """Show how much is done, or, with a total of 0, only that something is going on."""
        # Set here, because `update` takes None for "no change".
        self.tasks[0].total = total or None
        # Show a new activity at once, however short; the rest at the usual refresh rate.
        new = label != self.tasks[0].description
        self.update(
            self.task, refresh=new, description=label, completed=done, visible=True, amount=amount
        )


@contextmanager
def display_target(quiet: bool, kind: type[Bars]) -> Iterator[Console | Bars]:
    """Where to show progress: bars on a terminal or in a notebook, else stderr.

    If quiet, only the package's warnings are shown.
    """
    console = output.console(stderr=True)
    with output.show_warnings(console):
        if quiet:
            yield Console(quiet=True)
        elif console.is_terminal or console.is_jupyter:
            with kind(console) as live:
                yield live
        else:
            yield console


class Display:
    """Prints lines to a console or above bars, shows progress on either, and answers signals."""

    def __init__(self, target: Console | Bars, interrupts: Interrupts) -> None:
        self.bars = target if isinstance(target, Bars) else None
        self.console = target.console if isinstance(target, Bars) else target
        self.interrupts = interrupts
        interrupts.on_first = self.acknowledge
        self.pace = output.Pace()

    def stop(self) -> bool:
        """Whether a signal asked to stop."""
        return self.interrupts.received is not None

    def say(self, text: str) -> None:
        """Print a line, unwrapped so that paths can be copied from a narrow terminal."""
        self.console.print(output.escape_controls(text), soft_wrap=True)

    def say_sometimes(self, text: str) -> None:
        """Print a line every few seconds, where there are no bars."""
        if self.bars is None and self.pace.due():
            self.say(text)

    def draw(self, label: str, done: int = 0, total: int = 0, amount: str = "") -> None:
        """Draw the single bar, where there is one."""
        if isinstance(self.bars, Bar):
            self.bars.draw(label, done, total, amount)

    def describe(self, details: str) -> None:
        """Show details below the bars, unless a signal was acknowledged there."""
        if self.bars is not None and not self.stop():
            self.bars.details = details

    @property
    def stopping_note(self) -> str:
        """The message shown after a signal."""
        return "Stopping after this batch; press Ctrl-C to quit at once."

    def acknowledge(self) -> None:
        """Show the message from the signal handler; avoid the console, which may be in use."""
        if self.bars is not None:
            self.bars.details = self.stopping_note
        elif not self.console.quiet:
            with suppress(OSError):  # a closed stderr must not keep the work from being saved
                os.write(2, f"{self.stopping_note}\n".encode())
