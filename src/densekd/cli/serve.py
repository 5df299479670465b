"""``densekd serve``: predictions over HTTP."""

from typing import Annotated

import typer

from densekd.cli.options import ModelFolder, Refuse, command, option
from densekd.display import output
from densekd.display.interrupts import Interrupts


@command(
    "densekd serve animals.model",
    "curl -F image=@photo.jpg http://127.0.0.1:8000/predict",
    "densekd serve animals.model --host 0.0.0.0 --port 8080",
    note="A finished update is served at once, without a restart.",
)
def serve_command(
    model: ModelFolder,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Unless only this computer can reach it, clients need a "
            "token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 for any.", min=0, max=65535)
    ] = 8000,
    token: Annotated[
        str | None,
        option(
            "Token that clients must send. Default: if one is needed, a new one is made and "
            "printed.",
            envvar="DENSEKD_TOKEN",
        ),
    ] = None,
    refuse: Refuse = 0.05,
) -> None:
    """Answer requests for predictions over HTTP, by default from this computer only."""
    import threading
    from contextlib import closing

    from densekd.serve.batching import CurrentModel
    from densekd.serve.server import listen_for_clients, needed_token, serving_model

    ended = threading.Event()
    with Interrupts() as interrupts:
        interrupts.on_first = ended.set
        with closing(listen_for_clients(host, port)) as listener:
            needed = needed_token(listener, token)
            with serving_model(CurrentModel(model, refuse), listener, needed) as address:
                typer.echo(f"{output.safe(model)} is served at {address}. Press Ctrl-C to stop.")
                if needed != token:
                    typer.echo(f"Clients must send the header `Authorization: Bearer {needed}`.")
                ended.wait()
                typer.echo("Finishing open requests.", err=True)
