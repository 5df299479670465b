"""``densekd export``: a model as one file that runs elsewhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from densekd.cli import output

EXAMPLES = """Examples:

densekd export animals.model --to onnx

densekd export animals.model --to torch --out animals.pt2

It takes uint8 pixels and gives calibrated probabilities; names and preprocessing are in it."""


class To(StrEnum):
    """The kinds of file."""

    onnx = "onnx"
    torch = "torch"


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")],
    to: Annotated[To, typer.Option(help="ONNX, or torch's own format, for torch.export.load.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it, if not beside the model."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Export the model as it was after an earlier step.")
    ] = None,
) -> None:
    """Write a model to one file that runs without densekd, checked on the model's own images."""
    from densekd.model.export import ENDINGS, export, usage
    from densekd.model.model import Model

    opened = Model.open(model, step)
    if out is None:
        place = model.resolve()
        out = place.with_name(place.name.removesuffix(".model") + ENDINGS[to.value])
    typer.echo(f"Exporting {output.safe(model)}, which takes some seconds.", err=True)
    with output.progress("Checking it", "images") as on_progress:
        exported = export(opened, to.value, out, on_progress)
    size = output.number(exported.bytes / 1000)
    typer.echo(
        f"{output.safe(exported.file)} ({size} kB) agrees with the model on "
        f"{output.number(exported.images)} images: no probability differs by more than "
        f"{exported.difference:.1e}.\n\nTo use it:\n"
    )
    typer.echo(usage(to.value, exported.file), nl=False)
