"""The order in which classes are learned."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def seeded_order(classes: int, seed: int) -> list[int]:
    """A permutation of the class ids by legacy NumPy, as the field's protocols draw it.

    Seed 1993 on 100 classes is the order of UCIR, CCIL and PyCIL: 68, 56, 78, 8, 23, ...
    """
    order: list[int] = np.random.RandomState(seed).permutation(classes).tolist()
    return order


def icarl_order(images_per_class: Sequence[int], seed: int = 1993) -> list[int]:
    """The first order of iCaRL, PODNet and AFC: 87, 0, 52, 58, 44, ... on CIFAR-100.

    The same seed, but drawn after the images of every class were shuffled once, which is what
    their code happens to do.
    """
    random = np.random.RandomState(seed)
    for images in images_per_class:
        random.shuffle(np.arange(images))
    order = np.arange(len(images_per_class))
    random.shuffle(order)
    ids: list[int] = order.tolist()
    return ids


def order_from_file(path: Path, names: Sequence[str]) -> list[int]:
    """The order that a text file gives: each class once, by name, one in a line."""
    if not path.is_file():
        raise ValueError(f"There is no file {path} to read the class order from.")
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    return ids_of([line for line in lines if line and not line.startswith("#")], names)


def ids_of(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    """The ids of ``wanted`` classes, which must be all ``names``, each once."""
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise ValueError(f"There is no class {unknown[0]!r} in this data set.")
    twice = [name for name in wanted if wanted.count(name) > 1]
    if twice:
        raise ValueError(f"The class {twice[0]!r} is named twice in the order.")
    missing = [name for name in names if name not in wanted]
    if missing:
        raise ValueError(
            f"The order lacks {len(missing)} of {len(names)} classes, such as {missing[0]!r}."
        )
    return [names.index(name) for name in wanted]
