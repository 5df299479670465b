"""``densekd data``: list, check, pack and download data sets."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import DataDir, argument, command, option
from densekd.display import output
from densekd.files import expand_home

# Modules that need torch are imported inside the commands, to keep --help fast.
if TYPE_CHECKING:
    from densekd.data.cifar import CifarName
    from densekd.data.folder import FoundImages
    from densekd.data.packed import PackedFile

_Source = Annotated[str, argument("A source that `densekd data list` shows.", "SOURCE")]
_ClassesFile = Annotated[
    Path | None, option("File that names the classes of imagenet:PATH to use, one per line.")
]
data_app = typer.Typer(no_args_is_help=True, help="List, check, pack and download data sets.")


@command("densekd data list --data-dir ~/data")
def list_command(data_dir: DataDir = None) -> None:
    """List the sources of images, and which are on this machine."""
    from densekd.data import cifar, sources

    where = sources.data_dir(data_dir)
    hub = importlib.util.find_spec("datasets") is not None
    here = {"digits": "yes", "hub": "downloaded when used" if hub else "needs densekd[hub]"}
    for name in cifar.OFFICIAL:
        place = cifar.find_cifar(name, where)
        here[name] = "no" if place is None else f"yes: {place.name}"
    table = output.table("source", "what it is", "here")
    for kind, source in sources.SOURCES.items():
        table.add_row(source.usage, source.summary, here.get(kind, "you give the path"))
    output.console().print(table)
    typer.echo(
        f"CIFAR is read from {output.safe(where)}; change that with --data-dir or DENSEKD_DATA. "
        "`densekd data get cifar100` downloads to it."
    )


@command(
    "densekd data check digits",
    "densekd data check cifar100 --data-dir ~/data",
    "densekd data check folder:~/photos",
    "densekd data check npz:set.npz",
)
def check_command(
    source: _Source,
    data_dir: DataDir = None,
    classes_file: _ClassesFile = None,
    image_column: Annotated[str | None, option("Column of images, for hub:NAME.")] = None,
    label_column: Annotated[str | None, option("Column of labels, for hub:NAME.")] = None,
) -> None:
    """Check that a source can be read in full, and count its images.

    Exits with code 1 if something is missing or damaged.
    """
    from densekd.data import cifar, sources
    from densekd.parts import load_files

    load_files([source])  # if it is a file of code, it may run: the user named it
    kind, rest = sources.parse(source)
    if kind in cifar.OFFICIAL:
        _check_cifar(kind, sources.data_dir(data_dir))
    elif (found := sources.find_source(source, classes_file)) is not None:
        _check_files(expand_home(rest), found)
        return
    options = sources.SourceOptions(
        data_dir,
        classes_file=classes_file,
        image_column=image_column,
        label_column=label_column,
        download=False,
    )
    with output.show_progress(f"Reading {output.safe(source)}", "images") as on_progress:
        dataset = sources.load(source, options, on_progress=on_progress)
    counts = {}
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        numbers = split.labels.bincount(minlength=len(dataset.classes)).tolist()
        counts[part] = dict(zip(dataset.classes, numbers, strict=True))
    _show_counts(counts)


@command(
    "densekd data pack imagenet:~/imagenet imagenet.packed",
    "densekd data pack folder:~/photos photos.packed --shorter-side 128",
    "densekd data pack folder:~/photos photos.packed --shorter-side 0",
)
def pack_command(
    source: _Source,
    file: Annotated[Path, argument("The packed file to write.", "FILE")],
    shorter_side: Annotated[
        int,
        option(
            "Shrink larger images to this many pixels on their shorter side; 0 keeps all files as "
            "they are. Default: 256."
        ),
    ] = 256,
    quality: Annotated[
        int, option("Quality of images that are encoded anew, from 1 to 95. Default: 90.")
    ] = 90,
    workers: Annotated[
        int | None, option("Processes that encode images. Default: up to one per processor.")
    ] = None,
    classes_file: _ClassesFile = None,
) -> None:
    """Pack the images of a folder or of ImageNet into one file, to train from it faster.

    Larger images are shrunk once, and all files but small JPEGs are encoded as JPEG, unless
    --shorter-side is 0. Train with `--data packed:FILE`, or with `imagenet:FILE` and its subsets.
    Repeat the command to resume it after an interruption. The file doesn't depend on the number of
    processes.
    """
    from densekd.data import pack, sources
    from densekd.data.folder import FoundImages, check_usable, warn_left_out

    found = sources.find_source(source, classes_file)
    if not isinstance(found, FoundImages):
        raise ValueError(f"{source} can't be packed; only folder:PATH and imagenet:PATH can.")
    options = pack.PackOptions(shorter_side or None, quality)
    warn_left_out(found.left_out)
    table, target = found.table(), expand_home(file)
    check_usable(Path(sources.parse(source)[1]), table.counts())
    with output.show_progress(f"Packing {output.safe(source)}", "images") as on_progress:
        left_out = pack.pack(table, target, options, workers, on_progress)
    _list_files("Can't be read, so left out", left_out)
    size = output.number(target.stat().st_size // 10**6)
    typer.echo(
        f"{output.safe(target)} is {size} MB. Train with --data {output.safe(f'packed:{target}')}."
    )


@command("densekd data get cifar100", "densekd data get cifar10 --data-dir ~/data")
def get_command(source: _Source, data_dir: DataDir = None) -> None:
    """Download a source unless it is already here."""
    from densekd.data import cifar, hub, sources

    kind, rest = sources.parse(source)
    if kind == "digits":
        typer.echo("digits comes with the package; there is nothing to download.")
    elif kind == "hub":
        parts = hub.open_hub(rest, bars=sys.stderr.isatty())
        counts = [f"{output.number(len(rows))} rows in {part}" for part, rows in parts.items()]
        typer.echo(f"{output.safe(source)} is downloaded: {', '.join(counts)}.")
    elif kind in cifar.OFFICIAL:
        _get_cifar(kind, sources.data_dir(data_dir))
    else:
        raise ValueError(f"{source} can't be downloaded; only cifar10, cifar100 and hub:NAME can.")


for _command in (list_command, check_command, pack_command, get_command):
    _command.add_to(data_app)


def _get_cifar(name: "CifarName", where: Path) -> None:
    from densekd.data import cifar

    place = cifar.find_cifar(name, where)
    damaged = [state.path for state in cifar.check_cifar(name, where) if state.status == "damaged"]
    if place is not None and not damaged:
        typer.echo(f"{name} is already here and intact: {output.safe(place)}.")
        return
    # A download replaces a damaged archive, but extracted files are read instead of the archive.
    if place is not None and place not in damaged:
        raise ValueError(
            f"{damaged[0]} is damaged; delete it and run `densekd data get {name}` again."
        )
    typer.echo(f"Downloading {cifar.OFFICIAL[name].url} to {output.safe(where)}.")
    with output.show_progress(name, "bytes") as on_progress:
        place = cifar.download_cifar(name, where, on_progress=on_progress)
    typer.echo(f"{name} is downloaded and intact: {output.safe(place)}.")


def _check_cifar(name: "CifarName", where: Path) -> None:
    from densekd.data import cifar

    states = cifar.check_cifar(name, where)
    for state in states:
        line = f"{state.status:8}{output.safe(state.path)}"
        if state.status == "damaged":
            line += f": its md5 is {state.found} and should be {state.expected}"
        typer.echo(line)
    found = {state.status for state in states}
    if found != {"intact"}:
        fetch = "Delete the damaged files and download" if "damaged" in found else "Download"
        typer.echo(f"{fetch} {name} with `densekd data get {name}`.")
        raise typer.Exit(1)


def _check_files(path: Path, found: "FoundImages | PackedFile") -> None:
    """Decode every image of a folder or of a packed file."""
    from densekd.data import folder

    left_out = found.left_out if isinstance(found, folder.FoundImages) else []
    with output.show_progress(f"Reading {output.safe(path)}", "images") as on_progress:
        counts, unreadable = folder.check_images(found.table(), on_progress)
    _show_counts({"images" if part == "all" else part: n for part, n in counts.items()})
    _list_files("Not used", left_out)
    _list_files("Can't be read", unreadable)
    folder.check_usable(path, counts)
    if unreadable:
        raise typer.Exit(1)
    typer.echo("Every image can be read.")


def _list_files(title: str, entries: Sequence[tuple[Path, str]]) -> None:
    if entries:
        typer.echo(f"{title} ({output.number(len(entries))}):")
    for file, reason in entries:
        typer.echo(f"  {output.safe(file)}: {reason}")


def _show_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print the number of images by part and class; in one line if classes have equally many."""
    console = output.console()
    classes = list(dict.fromkeys(name for own in counts.values() for name in own))
    images = ", ".join(f"{output.number(sum(own.values()))} {part}" for part, own in counts.items())
    console.print(f"{output.count(len(classes), 'class', 'classes')}: {images}.")
    rows = {c: [output.number(own.get(c, 0)) for own in counts.values()] for c in classes}
    if len(set(map(tuple, rows.values()))) == 1:
        each = ", ".join(map(" ".join, zip(rows[classes[0]], counts, strict=True)))
        console.print(f"Each class has {each}: {', '.join(map(output.safe, classes))}.")
        return
    table = output.table("class", numbers=counts)
    for name, row in rows.items():
        table.add_row(output.safe(name), *row)
    console.print(table)
