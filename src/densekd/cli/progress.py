"""What all that is shown of long work has in common: how it speaks, and how it is stopped."""

import os
from collections.abc import Iterator
from contextlib import suppress

import rich.progress as bars
from rich.console import Console, RenderableType
from rich.text import Text

from densekd.cli.signals import Interrupts


class Silent:
    """Says nothing, but stops when it should.

    Args:
        interrupts: the signals that ask for it.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    def stop(self) -> bool:
        """Whether a signal was received."""
        return self.interrupts.received is not None


class Spoken(Silent):
    """Speaks in lines that stay.

    Args:
        console: where.
        interrupts: the signals that it acknowledges.
    """

    def __init__(self, console: Console, interrupts: Interrupts) -> None:
        super().__init__(interrupts)
        interrupts.on_first = self.stopping
        self.console = console

    def say(self, text: str) -> None:
        """Show a line that stays."""
        # Softly, so that a path can be copied from a terminal that is too narrow for it.
        self.console.print(text, soft_wrap=True)

    @property
    def farewell(self) -> str:
        """What is said on a signal."""
        return "Stopping after this batch; Ctrl-C leaves at once."

    def stopping(self) -> None:
        """Acknowledge a signal, from within its handler, where the console may be in use."""
        with suppress(OSError):  # nothing may keep the work from being saved
            os.write(2, f"{self.farewell}\n".encode())


class Bars(bars.Progress):
    """Bars with what they are about before them, an amount behind, and details in lines below.

    Args:
        console: where.
        width: of a bar.
    """

    def __init__(self, console: Console, width: int) -> None:
        self.details = ""
        text, amount = (
            bars.TextColumn(f"{{task.{part}}}", markup=False)
            for part in ("description", "fields[amount]")
        )
        super().__init__(text, bars.BarColumn(width), amount, console=console, transient=True)

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bars, and the details if there are any."""
        yield from super().get_renderables()
        if self.details:
            yield Text(self.details, style="dim")
