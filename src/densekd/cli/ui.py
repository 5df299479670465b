"""``densekd ui``: a model's page in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from densekd.cli import output
from densekd.cli.signals import Interrupts

EXAMPLES = """Examples:

densekd ui my-model

densekd ui my-model --port 8080 --no-browser

MODEL need not exist yet: the page can teach it from the start."""


def ui(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The folder of the model.", show_default=False)
    ],
    port: Annotated[
        int | None,
        typer.Option(
            help="Where the page is; the first free one from 7860 by default, 0 for any.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Look at images, teach new classes and undo that, on a page for this computer alone."""
    import threading
    import webbrowser

    from densekd.ui.server import listen, serving

    ended = threading.Event()
    with Interrupts() as interrupts:
        interrupts.on_first = ended.set
        with serving(model, listen(port)) as address:
            typer.echo(f"{output.safe(model)} is at {address} until you press Ctrl-C.")
            if browser:
                webbrowser.open(address)
            ended.wait()
            typer.echo("Closing the page; an update that is going on is saved first.")
