"""``densekd predict``: classify images."""

import csv
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import ModelFolder, ModelStep, Refuse, argument, command
from densekd.display import output
from densekd.text import spreadsheet_text

if TYPE_CHECKING:
    from densekd.model.predict import FilePrediction


@dataclass(frozen=True)
class PredictOptions:
    """How to predict, and how to print it."""

    top: Annotated[int, typer.Option(help="Number of classes to print for each image.")] = 1
    refuse: Refuse = 0.05
    step: ModelStep = None
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False


@command(
    "densekd predict animals.model photo.jpg",
    "densekd predict animals.model holiday --top 3 --csv > holiday.csv",
    "find . -name '*.jpg' | densekd predict animals.model - --json",
    "densekd predict animals.model holiday --refuse 0.1",
    options=PredictOptions,
    note="Exits with code 1 if an image can't be read.",
)
def predict_command(
    options: PredictOptions,
    model: ModelFolder,
    images: Annotated[
        str,
        argument(
            "An image, a folder of images, or - for paths on stdin, one per line.", "IMAGE|FOLDER|-"
        ),
    ],
) -> None:
    """Classify images, with calibrated probabilities over all known classes."""
    from densekd.model.model import Model
    from densekd.model.predict import predict_files

    if options.json and options.as_csv:
        raise ValueError("Give either --json or --csv, not both.")
    files = _files(images)
    opened = Model.open(model, options.step)
    opened.refused = options.refuse
    found, began = [], time.monotonic()
    with output.show_progress("Classifying", "images") as on_progress:
        for answer in predict_files(opened, files, options.top):
            found.append(answer)
            on_progress(len(found), len(files))
    seconds = time.monotonic() - began
    if options.json:
        _print_json(found)
    elif options.as_csv:
        _print_csv(found)
    else:
        _print_table(found)
    unreadable = [answer for answer in found if answer.unreadable is not None]
    for answer in unreadable:
        typer.echo(f"{output.safe(answer.file)} can't be read: {answer.unreadable}.", err=True)
    if len(files) > 1:
        speed = output.number(len(files) / max(seconds, 1e-9))
        typer.echo(f"{output.count(len(files), 'image')}, {speed} images/s.", err=True)
    if unreadable:
        raise typer.Exit(1)


def _files(images: str) -> list[Path]:
    from densekd.model.predict import image_files

    if images == "-":
        # Split bytes: file names might not be UTF-8, and can contain Unicode line breaks.
        lines = sys.stdin.buffer.read().splitlines()
        files = [Path(os.fsdecode(line)) for line in lines if line.strip()]
        if not files:
            raise ValueError("There is no path on stdin; give one or more, each on a line.")
        return files
    path = Path(images)
    if not path.is_dir():
        return [path]
    files = image_files(path)
    if not files:
        raise ValueError(f"There is no image in {path}; check the path.")
    return files


def _print_table(found: Iterable["FilePrediction"]) -> None:
    table = output.table("image", "class", numbers=("%",))
    for answer in found:
        for rank, guess in enumerate(answer.prediction):
            name = "" if rank else output.safe(answer.file)
            label = output.safe(guess.name)
            if not answer.prediction.known and not rank:
                label = f"unknown, most like {label}"
            table.add_row(name, label, output.percent(guess.probability))
    output.console().print(table)


def _print_csv(found: Iterable["FilePrediction"]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["image", "rank", "name", "probability", "known"])
    for answer in found:
        for rank, (name, probability) in enumerate(answer.prediction, 1):
            known = "yes" if answer.prediction.known else "no"
            texts = [spreadsheet_text(text) for text in (str(answer.file), name)]
            writer.writerow([texts[0], rank, texts[1], f"{probability:.6f}", known])


def _print_json(found: Iterable["FilePrediction"]) -> None:
    values = [
        {
            "image": str(answer.file),
            "known": answer.prediction.known,
            "guesses": [guess._asdict() for guess in answer.prediction],
            "error": answer.unreadable,
        }
        for answer in found
    ]
    output.print_json(values)
