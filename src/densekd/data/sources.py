"""The registry of data sources: a name such as ``folder:PATH`` becomes a data set here.

To add a source, write a module with a loader and add a line to `_SOURCES`.
"""

import dataclasses
import difflib
import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from densekd.data.cifar import load_cifar
from densekd.data.convert import ConvertOptions, as_dataset
from densekd.data.dataset import Dataset, FileImages, OnProgress, Split, fingerprint
from densekd.data.digits_npz import load_digits, load_npz
from densekd.data.folder import (
    TRAIN,
    WHOLE,
    FolderTable,
    FoundImages,
    find_images,
    list_classes,
)
from densekd.data.folder_images import load_folder
from densekd.data.hub import load_hub
from densekd.data.imagenet import PAPERS, find_imagenet, load_imagenet
from densekd.data.packed import PackedFile, load_packed, open_packed
from densekd.data.scenario import read_names
from densekd.files import expand_home
from densekd.parts import find, is_reference


@dataclass(frozen=True)
class DataSource:
    """A kind of data source."""

    usage: str  # how users write it; the part after a colon is the loader's first argument
    summary: str
    load: Callable[..., Dataset]  # its keywords are those of `SourceOptions` that it takes


_SOURCES = (
    DataSource("digits", "1,797 digits, 8x8, 10 classes", load_digits),
    DataSource("cifar10", "60,000 photos, 32x32, 10 classes", partial(load_cifar, "cifar10")),
    DataSource("cifar100", "60,000 photos, 32x32, 100 classes", partial(load_cifar, "cifar100")),
    DataSource("folder:PATH", "your images, a sub-folder per class", load_folder),
    DataSource("imagenet:PATH", "ImageNet, train/ and val/", load_imagenet),
    DataSource(
        "imagenet100:PATH",
        "100 classes of ImageNet, drawn as by UCIR",
        partial(load_imagenet, subset="drawn"),
    ),
    *(
        DataSource(
            f"imagenet100-{subset}:PATH",
            f"the 100 classes of {authors}",
            partial(load_imagenet, subset=subset),
        )
        for subset, authors in PAPERS.items()
    ),
    DataSource("packed:FILE", "images packed by `densekd data pack`", load_packed),
    DataSource("npz:FILE", "arrays in a NumPy file", load_npz),
    DataSource("hub:NAME", "from the Hugging Face hub", load_hub),
)
SOURCES = {source.usage.partition(":")[0]: source for source in _SOURCES}


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source besides its name."""

    data_dir: Path | None = None  # where CIFAR is, or is downloaded to; see `data_dir`
    # Height and width. Unless given, 224 for folders and ImageNet; for the hub, that of the first
    # image.
    image_size: int | None = None
    classes_file: Path | None = None  # a text file of the classes to load, one per line
    seed: int = 0  # draws the test images of folders and hub data that aren't divided
    image_column: str | None = None  # needed for hub data with several image columns
    label_column: str | None = None  # needed for hub data with several label columns
    download: bool = True  # download CIFAR if it is missing
    # Decode the images of folders and ImageNet into memory if they need no more than this; 0 leaves
    # them in their files.
    memory_bytes: int | None = None


def load(
    name: str = "digits",
    options: SourceOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load the data set of that name, such as ``digits``, ``folder:PATH`` or ``mine.py:flowers``.

    Raises a `ValueError` for an unknown name, or for an option that the source doesn't use.

    Example:
        >>> import densekd
        >>> digits = densekd.load("digits")
        >>> len(digits.classes), len(digits.train)
        (10, 1347)
    """
    options = options or SourceOptions()
    kind, argument = parse(name)
    takes: Callable[..., object] = ConvertOptions if kind == "own" else SOURCES[kind].load
    taken = inspect.signature(takes).parameters
    for option in ("image_size", "classes_file", "image_column", "label_column"):
        if getattr(options, option) is not None and option not in taken:
            raise ValueError(f"{option} has no meaning for {name}; leave it out.")
    values = {**vars(options), "data_dir": data_dir(options.data_dir), "on_progress": on_progress}
    keywords = {key: values[key] for key in values.keys() & taken if values[key] is not None}
    if kind == "own":
        return as_dataset(find(name), name, ConvertOptions(**keywords))
    arguments = [argument] if argument else []
    return dataclasses.replace(SOURCES[kind].load(*arguments, **keywords), name=name)


_FIXED_CLASSES = {"digits": 10, "cifar10": 10, "cifar100": 100, "imagenet100": 100}


def count_classes(name: str, classes_file: Path | None = None) -> int | None:
    """Count the classes of a source without decoding its images.

    None if the number is unknown, as for hub data and custom data, or if the source can't be read.
    """
    if is_reference(name):
        return None
    kind, argument = parse(name)
    try:
        if classes_file is not None:
            return len(read_names(classes_file))
        fixed = _FIXED_CLASSES.get(kind.partition("-")[0])  # imagenet100-ccil also has 100
        return fixed or _count(kind, expand_home(argument))
    except ValueError:  # the run will report what is wrong
        return None


def _count(kind: str, path: Path) -> int | None:
    match kind:
        case "folder":
            parts = find_images(path).parts
            return sum(map(bool, parts[TRAIN if TRAIN in parts else WHOLE].values()))
        case "imagenet" if not path.is_file():
            return len(list_classes(path / TRAIN).folders)
        case "imagenet" | "packed":
            return len(open_packed(path).classes)
        case "npz":
            return len(load_npz(path).classes)
    return None


def find_source(name: str, classes_file: Path | None = None) -> FoundImages | PackedFile | None:
    """Find the files of a source that is a folder or a packed file; None for any other source."""
    kind, argument = parse(name)
    path = expand_home(argument)
    if kind == "folder":
        if classes_file is not None:
            raise ValueError(f"classes_file has no meaning for {name}; leave it out.")
        return find_images(path)
    if kind == "packed" or (kind.startswith("imagenet") and path.is_file()):
        return open_packed(path)
    if not kind.startswith("imagenet"):
        return None
    chosen: dict[str, Any] = getattr(SOURCES[kind].load, "keywords", {})
    return find_imagenet(path, classes_file, **chosen)


def source_digest(name: str) -> str | None:
    """Hash a source's file, or the names and sizes of the files in its folder.

    A different hash tells that they have changed. None if they can't be read, or for other sources.
    """
    kind, argument = parse(name)
    try:
        if kind == "npz":
            with open(os.open(expand_home(argument), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        found = find_source(name)
        if isinstance(found, PackedFile):
            return found.facts["index_sha256"]  # the index has the checksum of each image
        return None if found is None else _folder_digest(found.table())
    except (OSError, ValueError):
        return None


def _folder_digest(table: FolderTable) -> str:
    facts = table.classes, table.part_names, table.parts.tolist()
    files = fingerprint(Split(FileImages(table.files, 1), table.labels))
    return hashlib.sha256(repr((facts, files)).encode()).hexdigest()


def data_dir(given: Path | None = None) -> Path:
    """Return where downloads live: ``given``, else ``DENSEKD_DATA``, else the user's cache."""
    named = given or os.environ.get("DENSEKD_DATA")
    return expand_home(named) if named else platformdirs.user_cache_path("densekd")


def parse(name: str) -> tuple[str, str]:
    """Split a source's name at the colon, such as into ``("folder", "PATH")``, and check it.

    Custom data has the kind ``own``. Raises ValueError for an unknown or incomplete name.
    """
    if is_reference(name):
        return "own", name
    kind, colon, argument = name.partition(":")
    if kind not in SOURCES:
        raise ValueError(f"There is no source {name!r}; {_suggestion(name)}.")
    usage = SOURCES[kind].usage
    if ":" not in usage and colon:
        raise ValueError(f"{kind} takes nothing after its name; write {kind} instead of {name!r}.")
    if ":" in usage and not argument:
        raise ValueError(f"{kind} must say which; write it as {usage}.")
    return kind, argument


def _suggestion(name: str) -> str:
    usages = ", ".join(source.usage for source in SOURCES.values())
    if name and os.path.isdir(name):
        return f"write folder:{name} for the folder of that name, or one of {usages}"
    if name.endswith(".npz"):
        return f"write npz:{name} for the file of that name, or one of {usages}"
    near = difflib.get_close_matches(name.partition(":")[0].lower(), SOURCES, n=1)
    if not near:
        return f"choose one of {usages}"
    return f"did you mean {SOURCES[near[0]].usage}? There are {usages}"
