"""Convert images with labels to a task."""

from collections.abc import Iterable, Sequence

import torch

from densekd.data.convert import ImageInputs as ImageInputs
from densekd.data.convert import Label as Label
from densekd.data.convert import as_images as as_images
from densekd.data.convert import as_labels as as_labels
from densekd.data.convert import class_names
from densekd.data.dataset import Images, Split
from densekd.data.scenario import Task


def as_task(images: Images, labels: Iterable[Label], known: Sequence[str], number: int) -> Task:
    """Make the next task, with its classes in the order of their labels.

    A class is named by the text of its label. Raises ValueError if that is among the names of the
    ``known`` classes, which were learned before.
    """
    given = as_labels(labels, len(images))
    if not given:
        raise ValueError("There is no image to learn from.")
    names = class_names(given)
    again = [name for name in names if name in known]
    if again:
        raise ValueError(
            f"The class {again[0]!r} was learned before, and can't be learned again: leave its "
            "images out, or learn everything anew with fit."
        )
    ranks = {name: len(known) + rank for rank, name in enumerate(names)}
    train = Split(images, torch.tensor([ranks[str(label)] for label in given]))
    return Task(number, names, len(known), train, train.take(torch.arange(0)))
