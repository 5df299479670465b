"""``densekd ui``: a model's page in the browser."""

from typing import Annotated

import typer

from densekd.cli.options import ModelFolder, command, option
from densekd.display import output
from densekd.display.interrupts import Interrupts


@command(
    "densekd ui animals.model",
    "densekd ui animals.model --port 8080 --no-browser",
    note="MODEL need not exist: the page can create it.",
)
def ui_command(
    model: ModelFolder,
    port: Annotated[
        int | None,
        option(
            "Port of the page; 0 for any. Default: the first free one from 7860.", min=0, max=65535
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Classify images, teach classes and undo updates, on a page open to this computer only."""
    import threading
    import webbrowser

    from densekd.ui.server import serving

    ended = threading.Event()
    with Interrupts() as interrupts:
        interrupts.on_first = ended.set
        with serving(model, port) as address:
            typer.echo(f"{output.safe(model)} is at {address}. Press Ctrl-C to stop.")
            if browser:
                webbrowser.open(address)
            ended.wait()
            typer.echo("Closing the page; a running update is saved first.")
