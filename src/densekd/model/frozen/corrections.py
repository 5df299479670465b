"""Correct the classes of single photos that a model was taught."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.update import FrozenUpdate
from densekd.model.store import Edit, Store, Update


class Correction(NamedTuple):
    """What to do with a photo."""

    hash: bytes  # SHA-256 of its file
    label: str  # the class that it was taught as
    to: str | None  # the class that it shows; None to remove it


def correct_photos(folder: Path, corrections: Sequence[Correction]) -> Update:
    """Move photos to other classes of the model, or remove them, and refit its head.

    This is a step of its own, which `densekd.model.model.undo` takes back. Raises ValueError if a
    photo isn't there, or if a class would have no photo left to learn from.
    """
    began, store = time.monotonic(), Store(folder)
    store.existing()
    with store.locked():
        pointer, model = store.existing(), FrozenModel.open(folder)
        classes, labels = model.classes, model.labels.clone()
        hashes = [bytes(row.tolist()) for row in model.photos.hashes]
        names = [classes[rank] if rank >= 0 else "" for rank in labels.tolist()]
        places = {photo: place for place, photo in enumerate(zip(hashes, names, strict=True))}
        for each in corrections:
            if (each.hash, each.label) not in places:
                raise ValueError(f"This photo of {each.label!r} was changed meanwhile; try again.")
            place = places[each.hash, each.label]
            labels[place] = -1 if each.to is None else classes.index(each.to)
        learned = labels[(labels >= 0) & ~model.photos.test]
        left = torch.bincount(learned, minlength=len(classes)).tolist()
        if 0 in left:
            raise ValueError(
                f"No photo of {classes[left.index(0)]!r} would be left to learn from; teach other "
                "photos of it first."
            )
        edit = Edit("corrected", (), len(corrections))
        update = FrozenUpdate(
            store, pointer.steps, model, model.backbone, classes, labels, edit=edit
        )
        return update.commit(folder / "pending" / "corrected", began)
