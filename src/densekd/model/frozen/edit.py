"""Edit what a model was taught: forget or correct photos; forget, rename or merge classes."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from densekd.checks import is_folder_name
from densekd.data.folder import quote_names
from densekd.files import read_regular_file
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photos import Photos
from densekd.model.frozen.update import FrozenUpdate, new_ranks, relabel
from densekd.model.images import warn_if_alike
from densekd.model.store import EDIT, FROZEN, Edit, Store, Update

_MOST_BYTES = 1 << 30  # of a photo
_LONGEST_NAME = 255  # bytes of a folder's name


def forget(folder: Path, classes: Sequence[str], files: Sequence[Path] = ()) -> Update:
    """Make a step without these classes and photos; `undo` brings them back.

    The head is the same as if they had never been taught. A photo is found by its content, so the
    file may have another name than when it was taught.
    """
    if not classes and not files:
        raise ValueError("Name a class or a photo to forget.")
    with _editing(folder) as (model, began):
        gone = _class_photos(model, classes) | _file_photos(model, files)
        left = tuple(name for name in model.classes if name not in classes)
        labels = model.labels.masked_fill(gone, -1)
        _check_left(model, left, labels)
        edit = Edit("forgot", tuple(classes), int(gone.sum()))
        return commit_edit(model, edit, began, left, labels)


def rename_class(folder: Path, old: str, new: str) -> Update:
    """Make a step in which a class has another name."""
    _check_name(new)
    with _editing(folder) as (model, began):
        photos = int(_class_photos(model, [old]).sum())
        if new in model.classes:
            raise ValueError(
                f"{folder} knows {new!r} already; `densekd merge` makes one class of both, or "
                "choose another name."
            )
        warn_if_alike([new], [name for name in model.classes if name != old])
        classes = tuple(new if name == old else name for name in model.classes)
        edit = Edit("renamed", (old,), photos, new)
        return commit_edit(model, edit, began, classes, model.labels, {old: new})


def merge_classes(folder: Path, name: str, into: str) -> Update:
    """Make a step in which the photos of the class ``name`` belong to the class ``into``."""
    with _editing(folder) as (model, began):
        photos = int(_class_photos(model, [name]).sum())
        _class_photos(model, [into])
        if name == into:
            raise ValueError(f"{name!r} can't be merged into itself; name two classes.")
        classes = tuple(each for each in model.classes if each != name)
        edit = Edit("merged", (name,), photos, into)
        return commit_edit(model, edit, began, classes, model.labels, {name: into})


class Correction(NamedTuple):
    """The correction of a photo's class."""

    hash: bytes  # SHA-256 of its file
    label: str  # the class that it was taught as
    to: str | None  # the right class; None to remove the photo


def correct_photos(folder: Path, corrections: Sequence[Correction]) -> Update:
    """Make a step that moves photos to other classes of the model, or removes them.

    Raises ValueError if a photo isn't in its class any more, or if a class would have none left.
    """
    if not corrections:
        raise ValueError("There are no such photos to correct; choose again.")
    with _editing(folder) as (model, began):
        classes, labels = model.classes, model.labels.clone()
        places = defaultdict[tuple[bytes, str], list[int]](list)
        rows = zip(model.photos.hashes.numpy(), labels.tolist(), strict=True)
        for place, (row, rank) in enumerate(rows):
            if rank >= 0:
                places[row.tobytes(), classes[rank]].append(place)
        for each in corrections:
            if (each.hash, each.label) not in places or each.to not in (None, *classes):
                raise ValueError(f"This photo of {each.label!r} was changed meanwhile; try again.")
            to = -1 if each.to is None else classes.index(each.to)
            labels[places[each.hash, each.label]] = to
        _check_left(model, classes, labels)
        edit = Edit("corrected", (), int((labels != model.labels).sum()))
        return commit_edit(model, edit, began, classes, labels)


@contextmanager
def _editing(folder: Path) -> Iterator[tuple[FrozenModel, float]]:
    """Hold a model's lock; gives the model, and the start time on the monotonic clock."""
    began = time.monotonic()
    with editable_store(folder).locked():
        yield FrozenModel.open(folder), began


def editable_store(folder: Path) -> Store:
    """The files of a model; raises ValueError if it doesn't keep the features of its photos."""
    store = Store(folder)
    if store.facts(store.require_pointer().step).get("kind") != FROZEN:
        raise ValueError(
            f"{folder} was trained by a method, so its classes can't be changed; `densekd learn "
            "NEW_MODEL FOLDER` makes a new model from the photos you choose."
        )
    return store


def commit_edit(
    model: FrozenModel,
    edit: Edit,
    began: float,
    classes: tuple[str, ...],
    labels: Tensor,
    renamed: Mapping[str, str] | None = None,
) -> Update:
    """Fit a head to the edited classes, and make it the current step; the caller holds the lock.

    A photo counts once in a class, even if it came there from two.

    Args:
        model: the model before the edit.
        edit: the record of the edit.
        began: when the edit began, on the monotonic clock.
        classes: the classes after the edit.
        labels: of all photos, as ranks among the model's classes; -1 for those that are removed.
        renamed: maps old names to new ones, or to other classes.
    """
    store, renamed = Store(model.folder), renamed or {}
    ranks = relabel(labels, new_ranks(model.classes, classes, renamed))
    update = FrozenUpdate(
        store,
        store.require_pointer().steps,
        model,
        model.backbone,
        classes,
        _each_once(ranks, model.photos),
        renamed=renamed,
        edit=edit,
    )
    return update.commit(store.pending / EDIT / "state", began)


def _each_once(labels: Tensor, photos: Photos) -> Tensor:
    """The labels of photos; -1 for a photo that repeats an earlier one of its class."""
    seen, once = set[tuple[int, bytes]](), labels.clone()
    for place, (rank, row) in enumerate(zip(labels.tolist(), photos.hashes.numpy(), strict=True)):
        if (rank, row.tobytes()) in seen:
            once[place] = -1
        seen.add((rank, row.tobytes()))
    return once


def _check_name(name: str) -> None:
    """Raise ValueError unless a folder for `densekd learn` could have the name."""
    if not is_folder_name(name) or name != name.strip() or name.startswith("."):
        raise ValueError(
            f"A class can't be called {name!r}; choose a name without slashes, backslashes, "
            "control characters, a leading dot, or spaces around it."
        )
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError(
            f"The name {name[:20]!r}... is too long for a folder; choose one of at most "
            f"{_LONGEST_NAME} bytes."
        )


def _check_left(model: FrozenModel, classes: Sequence[str], labels: Tensor) -> None:
    """Raise unless there are classes and each has photos; labels are ranks in the model."""
    if not classes:
        raise ValueError(
            f"{model.folder} would have no class left; name fewer classes or photos, or start "
            "over with `densekd learn NEW_MODEL FOLDER`."
        )
    left = {model.classes[rank] for rank in labels.unique().tolist() if rank >= 0}
    empty = [name for name in classes if name not in left]
    if empty:
        raise ValueError(
            f"No photo of {quote_names(empty)} would be left; teach other photos of it first, or "
            "forget the class."
        )


def file_hash(file: Path) -> bytes:
    """The SHA-256 that identifies the photo in a file."""
    return sha256(read_regular_file(file, _MOST_BYTES)).digest()


def match_hashes(photos: Photos, hashes: Collection[bytes]) -> Tensor:
    """Whether each photo has one of the hashes, bool ``[n]``."""
    return torch.tensor([row.tobytes() in hashes for row in photos.hashes.numpy()]).bool()


def _class_photos(model: FrozenModel, classes: Sequence[str]) -> Tensor:
    """Whether each photo is in one of the classes; raises ValueError for an unknown class."""
    for name in classes:
        if name not in model.classes:
            near = get_close_matches(name, model.classes, n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"`densekd info {model.folder}` lists them."
            )
            raise ValueError(f"{model.folder} knows no class {name!r}; {hint}")
    ranks = torch.tensor([model.classes.index(name) for name in classes], dtype=torch.int64)
    return torch.isin(model.labels, ranks)


def _file_photos(model: FrozenModel, files: Sequence[Path]) -> Tensor:
    """Whether each photo is one of the files; raises ValueError for a file that wasn't taught."""
    found = torch.zeros_like(model.labels, dtype=torch.bool)
    for file in files:
        own = (model.labels >= 0) & match_hashes(model.photos, {file_hash(file)})
        if not own.any():
            raise ValueError(
                f"{model.folder} doesn't have the photo {str(file)!r}; give the exact file that it "
                "was taught, since photos are found by their content."
            )
        found |= own
    return found
