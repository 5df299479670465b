"""Convert images with labels to a task."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from densekd.data.convert import ImageInputs as ImageInputs
from densekd.data.convert import as_images as as_images
from densekd.data.dataset import Images, Split
from densekd.data.scenario import Task

Label = str | int


def as_task(images: Images, labels: Iterable[Label], known: Sequence[str], number: int) -> Task:
    """Make the next task, with its classes in the order of their labels.

    A class is named by the text of its label. Raises ValueError if that is among the names of the
    ``known`` classes, which were learned before.
    """
    given = as_labels(labels, len(images))
    if not given:
        raise ValueError("There is no image to learn from.")
    # Numbers in their own order, before names.
    ordered = sorted(set(given), key=lambda label: (isinstance(label, str), label))
    names = tuple(dict.fromkeys(map(str, ordered)))
    again = [name for name in names if name in known]
    if again:
        raise ValueError(
            f"The class {again[0]!r} was learned before, and can't be learned again: leave its "
            "images out, or learn everything anew with fit."
        )
    ranks = {name: len(known) + rank for rank, name in enumerate(names)}
    train = Split(images, torch.tensor([ranks[str(label)] for label in given]))
    return Task(number, names, len(known), train, train.take(torch.arange(0)))


def as_labels(labels: Iterable[Label], images: int) -> list[Label]:
    """Names and whole numbers; raises ValueError unless there is one for each of the images."""
    if not isinstance(labels, Iterable):
        raise ValueError(f"Labels must be a list with one for each image, not {labels!r}.")
    given = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    if len(given) != images:
        raise ValueError(f"{images} images have {len(given)} labels; give one for each.")
    given = [label.item() if isinstance(label, np.generic) else label for label in given]
    wrong = [label for label in given if not isinstance(label, str | int)]
    if wrong:
        raise ValueError(f"A label must be a name or a whole number, not {wrong[0]!r}.")
    kinds = {type(label) for label in given}
    if bool in kinds and len(kinds) > 1:
        raise ValueError("Labels are either all true or false, or none is: True equals 1.")
    return given
