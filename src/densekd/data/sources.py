"""The names of data sources, and the one place where they become data sets."""

import dataclasses
import difflib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from densekd.data import cifar, digits_npz, find, folder, hub, order
from densekd.data.dataset import Dataset, OnProgress

SOURCES = {
    "digits": "1,797 digits, 8x8, 10 classes",
    "cifar10": "60,000 photos, 32x32, 10 classes",
    "cifar100": "60,000 photos, 32x32, 100 classes",
    "folder:PATH": "your images, a sub-folder per class",
    "imagenet:PATH": "ImageNet, train/ and val/",
    "imagenet100:PATH": "100 classes of ImageNet",
    "npz:FILE": "arrays in a NumPy file",
    "hub:NAME": "from the Hugging Face hub",
}


@dataclass(frozen=True)
class SourceOptions:
    """What can be said about a source besides its name.

    Args:
        data_dir: where CIFAR is or is put; see `data_dir`.
        image_size: height and width for folders, ImageNet (224 by default) and the hub (by
            default that of its first image).
        classes_file: the classes of ImageNet to take, one per line.
        seed: draws the test images of folders and hub data that have none of their own.
        image_column: the images' column in hub data, where several could be meant.
        label_column: the labels' column in hub data, likewise.
        download: fetch CIFAR if it is missing.
    """

    data_dir: Path | None = None
    image_size: int | None = None
    classes_file: Path | None = None
    seed: int = 0
    image_column: str | None = None
    label_column: str | None = None
    download: bool = True


def load(
    name: str = "digits",
    options: SourceOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """The data set that a name stands for.

    Args:
        name: one of `SOURCES`, such as ``digits`` or ``folder:PATH``.
        options: for what the name doesn't say.
        on_progress: called with what is done and what there is in all.
    """
    kind, rest = parse(name)
    options = options or SourceOptions()
    _check_used(kind, options)
    return dataclasses.replace(_load(kind, rest, options, on_progress), name=name)


def data_dir(given: Path | None = None) -> Path:
    """Where downloaded data lives: ``given``, else ``DENSEKD_DATA``, else the user's cache."""
    named = given or os.environ.get("DENSEKD_DATA")
    if named:
        return Path(named).expanduser()
    return platformdirs.user_cache_path("densekd")


def parse(name: str) -> tuple[str, str]:
    """A source's kind and what follows the colon, such as ``("folder", "PATH")``."""
    kind, colon, rest = name.partition(":")
    known = {source.partition(":")[0]: source for source in SOURCES}
    if kind not in known:
        raise ValueError(f"There is no source {name!r}; {_proposal(name, known)}.")
    if ":" not in known[kind] and colon:
        raise ValueError(f"{kind} takes nothing after its name; write {kind} instead of {name!r}.")
    if ":" in known[kind] and not rest:
        raise ValueError(f"{kind} must say which; write it as {known[kind]}.")
    return kind, rest


def imagenet_classes(kind: str, path: Path, classes_file: Path | None) -> list[str] | None:
    """The classes to take of the ImageNet in ``path``; None stands for all."""
    if classes_file is not None:
        return order.read_names(classes_file)
    if kind == "imagenet100":
        return folder.imagenet100_classes(find.class_names(path / "train"))
    return None


def _proposal(name: str, known: dict[str, str]) -> str:
    listed = ", ".join(known.values())
    if name and Path(name).is_dir():
        return f"write folder:{name} for the folder of that name, or one of {listed}"
    if name.endswith(".npz"):
        return f"write npz:{name} for the file of that name, or one of {listed}"
    near = difflib.get_close_matches(name.partition(":")[0].lower(), known, n=1)
    return f"the nearest of {listed} is {known[near[0]]}" if near else f"choose one of {listed}"


_USED = {
    "folder": {"image_size"},
    "imagenet": {"image_size", "classes_file"},
    "imagenet100": {"image_size", "classes_file"},
    "hub": {"image_size", "image_column", "label_column"},
}


def _check_used(kind: str, options: SourceOptions) -> None:
    """Refuse what would have no effect, for it was meant to have one."""
    for option in ("image_size", "classes_file", "image_column", "label_column"):
        if getattr(options, option) is not None and option not in _USED.get(kind, ()):
            raise ValueError(f"{option} has no meaning for {kind}; leave it out.")


def _load(kind: str, rest: str, options: SourceOptions, on_progress: OnProgress | None) -> Dataset:
    size = {} if options.image_size is None else {"image_size": options.image_size}
    path = Path(rest).expanduser()
    match kind:
        case "cifar10" | "cifar100":
            where = data_dir(options.data_dir)
            return cifar.load_cifar(kind, where, download=options.download, on_progress=on_progress)
        case "folder":
            return folder.load_folder(path, seed=options.seed, on_progress=on_progress, **size)
        case "imagenet" | "imagenet100":
            classes = imagenet_classes(kind, path, options.classes_file)
            return folder.load_imagenet(path, classes=classes, on_progress=on_progress, **size)
        case "npz":
            return digits_npz.load_npz(path)
        case "hub":
            return hub.load_hub(
                rest,
                image_column=options.image_column,
                label_column=options.label_column,
                image_size=options.image_size,
                seed=options.seed,
                on_progress=on_progress,
            )
    return digits_npz.load_digits()
