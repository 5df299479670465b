"""``densekd export``: a model as one file that runs without densekd."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from densekd.cli import output
from densekd.cli.options import ModelFolder, ModelStep, command, option


@command(
    "densekd export animals.model --to onnx",
    "densekd export animals.model --to torch --out animals.pt2",
    note="The file takes uint8 pixels and gives calibrated probabilities. It contains the class "
    "names and the preprocessing.",
)
def export_command(
    model: ModelFolder,
    to: Annotated[
        Literal["onnx", "torch"],
        typer.Option(help="ONNX, or PyTorch's format for torch.export.load."),
    ],
    out: Annotated[
        Path | None, option("File to write. Default: beside the model.", metavar="FILE")
    ] = None,
    step: ModelStep = None,
) -> None:
    """Export a model to one file, and check it on the model's own images."""
    from densekd.model.export import ENDINGS, export, usage
    from densekd.model.model import Model

    opened = Model.open(model, step)
    if out is None:
        place = model.resolve()
        out = place.with_name(place.name.removesuffix(".model") + ENDINGS[to])
    typer.echo(f"Exporting {output.safe(model)}; this takes a few seconds.", err=True)
    with output.show_progress("Checking", "images") as on_progress:
        exported = export(opened, to, out, on_progress)
    size = output.number(exported.bytes / 1000)
    typer.echo(
        f"{output.safe(exported.file)} ({size} kB) agrees with the model on "
        f"{output.count(exported.images, 'image')}: probabilities differ by at most "
        f"{exported.difference:.1e}.\n\nTo use it:\n"
    )
    typer.echo(usage(to, exported.file), nl=False)
