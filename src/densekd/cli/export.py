"""``densekd export``: a model as one file that runs without densekd."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from densekd.cli.options import ModelFolder, ModelStep, Refuse, command, option
from densekd.display import output

if TYPE_CHECKING:
    from densekd.model.quantise import Int8Comparison


@command(
    "densekd export animals.model --to onnx",
    "densekd export animals.model --to onnx --int8",
    "densekd export animals.model --to torch --out animals.pt2",
    note="The file takes uint8 pixels and gives calibrated probabilities, and whether an image "
    "looks like anything that was taught. It contains the class names and the preprocessing.",
)
def export_command(
    model: ModelFolder,
    to: Annotated[
        Literal["onnx", "torch"],
        typer.Option(help="Format: ONNX, or torch for torch.export.load."),
    ],
    out: Annotated[
        Path | None, option("File to write. Default: beside the model.", metavar="FILE")
    ] = None,
    step: ModelStep = None,
    refuse: Refuse = 0.05,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Quantise an ONNX file to 8 bits: smaller, and usually faster."
        ),
    ] = False,
) -> None:
    """Export a model to one file, and check it on the model's own images."""
    from densekd.model.export import ENDINGS, export, export_int8, usage
    from densekd.model.model import Model

    if int8 and to != "onnx":
        raise ValueError("Only ONNX files can be quantised to 8 bits; use --int8 with --to onnx.")
    opened = Model.open(model, step)
    opened.refused = refuse
    if out is None:
        place, ending = Path(os.path.realpath(model)), f"{'.int8' if int8 else ''}{ENDINGS[to]}"
        out = place.with_name(place.name.removesuffix(".model") + ending)
    long = "up to a minute" if int8 else "a few seconds"
    typer.echo(f"Exporting {output.safe(model)}; this takes {long}.", err=True)
    with output.show_progress("Checking", "images") as on_progress:
        if int8:
            exported, compared = export_int8(opened, out, on_progress)
        else:
            exported = export(opened, to, out, on_progress)
    size = output.number(exported.bytes / 1000)
    if int8:
        typer.echo(f"{output.safe(exported.file)} ({size} kB) {_in_words(compared)}")
    else:
        typer.echo(
            f"{output.safe(exported.file)} ({size} kB) agrees with the model on "
            f"{output.count(exported.images, 'image')}: probabilities differ by at most "
            f"{exported.difference:.1e}."
        )
    typer.echo("\nTo use it:\n")
    typer.echo(usage(to, exported.file), nl=False)


def _in_words(compared: "Int8Comparison") -> str:
    """Compare the 8-bit file with the 32-bit one; continues a sentence that names the file."""
    images = output.count(compared.images, "test image" if compared.held_out else "image")
    parts = [
        f"predicts the same class as the 32-bit file ({output.number(compared.bytes / 1000)} kB) "
        f"for {output.percent(compared.agreement)} % of {images}, {compared.speed:.1f} times as "
        "fast on this computer."
    ]
    if compared.accuracy is not None:
        parts.append(f"Accuracy in %: {_change(compared.accuracy)}.")
    parts.append(f"Called unknown, in %: {_change(compared.unknown)}.")
    return " ".join(parts)


def _change(values: tuple[float, float]) -> str:
    return " → ".join(output.percent(value) for value in values)
