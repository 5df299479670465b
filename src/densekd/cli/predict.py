"""``densekd predict``: what images show."""

import csv
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli import output

if TYPE_CHECKING:
    from densekd.model.predict import FilePrediction

EXAMPLES = """Examples:

densekd predict animals.model photo.jpg

densekd predict animals.model holiday --top 3 --csv > holiday.csv

find . -name '*.jpg' | densekd predict animals.model - --json

Ends with code 1 if an image can't be read."""


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")],
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE|FOLDER|-",
            help="A file, a folder with all in it, or - for paths on stdin, one a line.",
        ),
    ],
    top: Annotated[int, typer.Option(help="How many classes to name for each image.")] = 1,
    step: Annotated[
        int | None, typer.Option(help="Ask the model as it was after an earlier step.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Say what images show, with calibrated probabilities over all known classes."""
    from densekd.model.model import Model
    from densekd.model.predict import predict_files

    if json and as_csv:
        raise ValueError("Give either --json or --csv, and not both.")
    files = _files(images)
    opened = Model.open(model, step)
    found, began = [], time.monotonic()
    with output.progress("Looking at images", "images") as on_progress:
        for answer in predict_files(opened, files, top):
            found.append(answer)
            on_progress(len(found), len(files))
    seconds = time.monotonic() - began
    if json:
        _print_json(found)
    elif as_csv:
        _print_csv(found)
    else:
        _print_table(found)
    unreadable = [answer for answer in found if answer.unreadable is not None]
    for answer in unreadable:
        typer.echo(f"{output.safe(answer.file)} can't be read: {answer.unreadable}.", err=True)
    if len(files) > 1:
        speed = output.number(len(files) / max(seconds, 1e-9))
        typer.echo(f"{output.number(len(files))} images, {speed} images/s.", err=True)
    if unreadable:
        raise typer.Exit(1)


def _files(images: str) -> list[Path]:
    from densekd.model.predict import image_files

    if images == "-":
        files = [Path(line) for line in sys.stdin.read().splitlines() if line.strip()]
        if not files:
            raise ValueError("There is no path on the standard input; give one in each line.")
        return files
    path = Path(images)
    if not path.is_dir():
        return [path]
    files = image_files(path)
    if not files:
        raise ValueError(f"There is no image in {path}; check its name.")
    return files


def _print_table(found: Iterable["FilePrediction"]) -> None:
    table = output.table("image", "shows", numbers=("%",))
    for answer in found:
        for rank, guess in enumerate(answer.guesses):
            name = "" if rank else output.safe(answer.file)
            table.add_row(name, output.safe(guess.name), output.percent(guess.probability))
    output.console().print(table)


def _print_csv(found: Iterable["FilePrediction"]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["image", "rank", "name", "probability"])
    for answer in found:
        for rank, (name, probability) in enumerate(answer.guesses, 1):
            writer.writerow([str(answer.file), rank, name, f"{probability:.6f}"])


def _print_json(found: Iterable["FilePrediction"]) -> None:
    from densekd.files import to_json

    values = [
        {
            "image": str(answer.file),
            "guesses": [guess._asdict() for guess in answer.guesses],
            "error": answer.unreadable,
        }
        for answer in found
    ]
    typer.echo(to_json(values), nl=False)
