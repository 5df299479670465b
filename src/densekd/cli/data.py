"""``densekd data``: see what data there is, check it, fetch it."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli import output

# What needs torch is imported in the commands, for it takes seconds and --help shouldn't.
if TYPE_CHECKING:
    from densekd.data.cifar import Name
    from densekd.data.dataset import Dataset

Counts = Mapping[str, Mapping[str, int]]

app = typer.Typer(no_args_is_help=True, help="See what data there is, check it, fetch it.")

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A source as `densekd data list` shows them.", show_default=False
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Where CIFAR is, or is put. Without it DENSEKD_DATA counts, else your cache folder.",
        show_default=False,
    ),
]


@app.command("list", epilog="Example:\n\ndensekd data list --data-dir ~/data")
def list_sources(data_dir: DataDir = None) -> None:
    """List the sources of images, and whether they are here."""
    from densekd.data import cifar, sources

    where = sources.data_dir(data_dir)
    hub = importlib.util.find_spec("datasets") is not None
    here = {"digits": "yes", "hub": "fetched when used" if hub else "needs densekd[hub]"}
    for name in cifar.OFFICIAL:
        place = cifar.find_cifar(name, where)
        here[name] = "no" if place is None else f"yes: {place.name}"
    table = output.table("source", "what it is", "here")
    for kind, source in sources.SOURCES.items():
        table.add_row(source.usage, source.summary, here.get(kind, "you say where"))
    output.console().print(table)
    typer.echo(
        f"CIFAR is looked for in {output.safe(where)}; `densekd data get cifar100` downloads it "
        "there, and --data-dir or DENSEKD_DATA names another folder."
    )


@app.command(
    epilog="Examples:\n\ndensekd data check digits\n\ndensekd data check cifar100 --data-dir ~/data"
    "\n\ndensekd data check folder:~/photos\n\ndensekd data check npz:set.npz"
)
def check(
    source: SourceName,
    data_dir: DataDir = None,
    classes_file: Annotated[
        Path | None, typer.Option(help="The classes to take of imagenet:PATH, one per line.")
    ] = None,
    image_column: Annotated[str | None, typer.Option(help="Of images, for hub:NAME.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Of labels, for hub:NAME.")] = None,
) -> None:
    """Check that a source can be read in full, and count its images.

    Ends with code 1 if something is missing or damaged.
    """
    from densekd.data import sources

    kind, rest = sources.parse(source)
    options = sources.SourceOptions(
        data_dir,
        classes_file=classes_file,
        image_column=image_column,
        label_column=label_column,
        download=False,
    )
    match kind:
        case "cifar10" | "cifar100":
            _check_cifar(kind, sources.data_dir(data_dir))
        case "folder" | "imagenet" | "imagenet100":
            _check_folder(kind, Path(rest).expanduser(), classes_file)
            return
    with output.progress(f"Reading {source}", "images") as on_progress:
        dataset = sources.load(source, options, on_progress=on_progress)
    _show_counts(_counts(dataset))


@app.command(
    epilog="Examples:\n\ndensekd data get cifar100\n\ndensekd data get cifar10 --data-dir ~/data"
)
def get(source: SourceName, data_dir: DataDir = None) -> None:
    """Download a source, unless it is here."""
    from densekd.data import cifar, hub, sources

    kind, rest = sources.parse(source)
    if kind == "digits":
        typer.echo("digits come with scikit-learn; there is nothing to download.")
    elif kind == "hub":
        parts = hub.open_hub(rest, bars=sys.stderr.isatty())
        counts = ", ".join(
            f"{output.number(len(rows))} rows in {part}" for part, rows in parts.items()
        )
        typer.echo(f"{source} is here: {counts}.")
    elif kind in cifar.OFFICIAL:
        _get_cifar(kind, sources.data_dir(data_dir))
    else:
        raise ValueError(f"{source} can't be fetched, only cifar10, cifar100 and hub:NAME can.")


def _get_cifar(name: "Name", where: Path) -> None:
    from densekd.data import cifar

    place = cifar.find_cifar(name, where)
    damaged = [state.path for state in cifar.check_cifar(name, where) if state.status == "damaged"]
    if place is not None and not damaged:
        typer.echo(f"{name} is already here and intact: {output.safe(place)}.")
        return
    # A damaged archive is replaced, but an extracted file would be read in place of what comes.
    if place is not None and place not in damaged:
        raise ValueError(
            f"{damaged[0]} is damaged; delete it and repeat `densekd data get {name}`."
        )
    typer.echo(f"Downloading {cifar.OFFICIAL[name].url} to {output.safe(where)}.")
    with output.progress(name, "bytes") as on_progress:
        place = cifar.download_cifar(name, where, on_progress=on_progress)
    typer.echo(f"{name} is here now and intact: {output.safe(place)}.")


def _check_cifar(name: "Name", where: Path) -> None:
    from densekd.data import cifar

    states = cifar.check_cifar(name, where)
    for state in states:
        difference = f": its md5 is {state.found} and should be {state.expected}"
        detail = difference if state.status == "damaged" else ""
        typer.echo(f"{state.status:8}{output.safe(state.path)}{detail}")
    found = {state.status for state in states}
    if found != {"intact"}:
        fetch = "Delete what is damaged and fetch" if "damaged" in found else "Fetch"
        typer.echo(f"{fetch} {name} with `densekd data get {name}`.")
        raise typer.Exit(1)


def _check_folder(kind: str, path: Path, classes_file: Path | None) -> None:
    from densekd.data import folder, imagenet

    if kind == "folder":
        found = folder.find_images(path)
    else:
        classes = imagenet.imagenet_classes(kind, path, classes_file)
        found = imagenet.find_imagenet(path, classes)
    with output.progress(f"Reading {output.safe(path)}", "images") as on_progress:
        report = folder.check_images(found, on_progress)
    _show_counts({"images" if part == "all" else part: n for part, n in report.images.items()})
    for title, entries in (("Not used", found.left_out), ("Can't be read", report.unreadable)):
        if entries:
            typer.echo(f"{title} ({output.number(len(entries))}):")
        for file, reason in entries:
            typer.echo(f"  {output.safe(file)}: {reason}")
    folder.check_usable(path, report.images)
    if report.unreadable:
        raise typer.Exit(1)
    typer.echo("Every image can be read.")


def _counts(dataset: "Dataset") -> Counts:
    """The number of training and test images of each class."""
    counts = {}
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        numbers = split.labels.bincount(minlength=len(dataset.classes)).tolist()
        counts[part] = dict(zip(dataset.classes, numbers, strict=True))
    return counts


def _show_counts(counts: Counts) -> None:
    """The images in all and by class: in one line if all classes have as many, else a table."""
    console = output.console()
    classes = list(dict.fromkeys(name for own in counts.values() for name in own))
    images = ", ".join(f"{output.number(sum(own.values()))} {part}" for part, own in counts.items())
    noun = "class" if len(classes) == 1 else "classes"
    console.print(f"{output.number(len(classes))} {noun}: {images}.")
    numbers = {tuple(own.get(name, 0) for own in counts.values()) for name in classes}
    if len(numbers) == 1:
        each = ", ".join(
            f"{output.number(n)} {part}" for part, n in zip(counts, *numbers, strict=True)
        )
        console.print(f"Each class has {each}: {', '.join(map(output.safe, classes))}.")
        return
    table = output.table("class", numbers=counts)
    for name in classes:
        table.add_row(
            output.safe(name), *(output.number(own.get(name, 0)) for own in counts.values())
        )
    console.print(table)
