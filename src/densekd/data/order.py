"""The order in which classes are learned."""

import re
from collections import Counter
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
    return ids_of(read_names(path), names)


def read_names(path: Path) -> list[str]:
    """The classes that a text file names, one per line; blank lines and # comments don't count."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} can't be read as a text file with one class per line ({error})."
        ) from error
    # A # within a name, such as C#, is part of it.
    names = [name for line in lines if (name := re.sub(r"(^|\s)#.*", "", line).strip())]
    if not names:
        raise ValueError(f"{path} names no class; it must have one per line.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} names the class {name!r} {count} times; keep one of them.")
    return names


def ids_of(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    """The ids of ``wanted`` classes, which must be all ``names``, each once."""
    ids = {name: i for i, name in enumerate(names)}
    unknown = [name for name in wanted if name not in ids]
    if unknown:
        raise ValueError(f"There is no class {unknown[0]!r} in this data set.")
    if len(set(wanted)) < len(wanted):
        name, _ = Counter(wanted).most_common(1)[0]
        raise ValueError(f"The class {name!r} is named twice in the order.")
    missing = ids.keys() - set(wanted)
    if missing:
        raise ValueError(
            f"The order lacks {len(missing)} of {len(names)} classes, such as {min(missing)!r}."
        )
    return [ids[name] for name in wanted]
