"""The defaults of all settings that depend on the data or on the method."""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

from densekd.data.augment import Crop
from densekd.data.folder_images import FOLDER_IMAGE_SIZE
from densekd.methods.ccil import CCIL
from densekd.methods.method import DataKind, Published
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import baseline_of
from densekd.methods.schedule import DIGITS_SCHEDULE, Schedules, same_for_all, stepped
from densekd.parts import is_reference

# "strong-decay" is "paper" with CCIL's weight decay, which gets nearer to the accuracy that both
# publish for the base task (docs/results.md).
Preset = Literal["paper", "strong-decay", "ccil"]
_STRONG_DECAY = 5e-4

# The default height and width of images in files; 0 for hub data, whose size is only known later.
_IMAGE_SIZES = {"folder": FOLDER_IMAGE_SIZE, "packed": FOLDER_IMAGE_SIZE, "hub": 0}
_LARGEST_SMALL = 64
_LARGEST_DIGITS = 16


class _Usual(NamedTuple):
    """The defaults of the paper's methods for one kind of data.

    lambda_base is CCIL's with CCIL's rule, else the paper's; docs/decisions/012 and 016 say why.
    """

    network: str
    schedules: Schedules
    lambda_by_ratio: float  # with CCIL's rule, lambda_base (seen / new)^0.66
    lambda_by_itself: float  # with the adaptive weight, or as a constant


_ON_IMAGENET = Schedules(
    stepped(70, 0.1, milestones=(30, 60)), stepped(40, 0.01, milestones=(25, 35))
)
_USUAL: dict[DataKind, _Usual] = {
    # Smaller lambdas: digits have a tenth of CIFAR-100's classes, and longer features.
    "digits": _Usual("resnet8", same_for_all(DIGITS_SCHEDULE), 0.5, 0.2),
    "small": _Usual("resnet32", Schedules(), DenseOptions.lambda_base, 20.0),
    "imagenet100": _Usual("resnet18", _ON_IMAGENET, 100.0, 100.0),
    "imagenet": _Usual("resnet18", _ON_IMAGENET, 600.0, 600.0),
}


def data_kind(source: str, image_size: int | None = None) -> DataKind:
    """The kind of data of a source such as ``folder:PATH``; it decides the defaults.

    Folders, packed files and hub data of more than 64 pixels are large images, and get the settings
    of ImageNet-100.
    """
    match source.partition(":")[0]:
        case "digits" | "imagenet" | "imagenet100" as name:
            return name
        case "imagenet100-ccil" | "imagenet100-ucir" | "imagenet100-podnet":
            return "imagenet100"
        case name if name in _IMAGE_SIZES or is_reference(source):
            size = image_size or _IMAGE_SIZES.get(name, 0)
            return "imagenet100" if size > _LARGEST_SMALL else "small"
    return "small"


def kind_by_size(shortest: int) -> DataKind:
    """The kind of images whose source isn't known, by their shorter side in pixels.

    Images of at most 16 pixels count as digits, those of more than 64 pixels as ImageNet-100.
    """
    if shortest > _LARGEST_SMALL:
        return "imagenet100"
    return "small" if shortest > _LARGEST_DIGITS else "digits"


def default_augment(source: str, kind: DataKind) -> dict[str, Any]:
    """The usual augmentation; digits are not mirrored, since they would no longer be digits."""
    usual = {"padding": 1, "flip": False} if kind == "digits" else {"padding": 4, "flip": True}
    return {**usual, "crop": default_crop(source)}


def default_crop(source: str) -> Crop:
    """The crop of training images: ``resized`` for ImageNet and packed files, else ``padded``.

    It depends on the source, not on whether its images fit into memory.
    """
    name = source.partition(":")[0]
    large = name == "packed" or name.partition("-")[0] in ("imagenet", "imagenet100")
    return "resized" if large and not is_reference(source) else "padded"


def default_lambda(
    method: str, kind: DataKind, *, constant: bool = False, schedules: DataKind | None = None
) -> float:
    """The default of ``lambda_base``, the weight of a dense distillation.

    ``constant`` says that lambda doesn't depend on the numbers of classes. ``schedules`` is the
    kind of data whose schedules are used, if it isn't ``kind``.
    """
    by_itself = constant or method.endswith("-adaptive")
    usual = _USUAL[kind]
    value = usual.lambda_by_itself if by_itself else usual.lambda_by_ratio
    baseline = baseline_of(method) if "+" in method else None
    if baseline is None:
        return value
    return value * baseline.published_for(schedules or kind).lambda_factor


def method_defaults(method: str, kind: DataKind, preset: Preset = "paper") -> Published[Any]:
    """The defaults of a method: schedules, network, selection and its own options.

    A method that isn't a baseline gets those of the paper's methods, with the preset's schedules.
    """
    baseline, usual = baseline_of(method), _USUAL[kind]
    if baseline is not None:
        found = baseline.published_for(kind)
        return dataclasses.replace(found, network=found.network or usual.network)
    schedules = usual.schedules
    if preset == "ccil":  # CCIL published no schedules for digits
        schedules = CCIL.published["small" if kind == "digits" else kind].schedules
    elif preset == "strong-decay":
        decayed = functools.partial(dataclasses.replace, weight_decay=_STRONG_DECAY)
        schedules = Schedules(decayed(schedules.base), decayed(schedules.increment))
    return Published(None, schedules, usual.network, selection="random")
