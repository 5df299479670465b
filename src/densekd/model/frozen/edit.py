"""Change what a model was taught: forget classes and photos, rename classes, merge two."""

import time
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from densekd.data.folder import quote_names
from densekd.files import read_regular_file
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photos import Photos
from densekd.model.frozen.update import FrozenUpdate, new_ranks
from densekd.model.store import FROZEN, Edit, Store, Update

_MOST_BYTES = 1 << 30  # of a photo


def forget(folder: Path, classes: Sequence[str], files: Sequence[Path] = ()) -> Update:
    """Make a step without these classes and photos; `undo` brings them back.

    The head is the one that is fitted if they were never taught. A photo is found by its content,
    so the file may have another name than when it was taught.

    Args:
        folder: the model's folder.
        classes: to be forgotten.
        files: photos to be forgotten, whatever their class.
    """
    began, store = time.monotonic(), editable_store(folder)
    if not classes and not files:
        raise ValueError("Name a class or a photo to forget.")
    with store.locked():
        model = FrozenModel.open(folder)
        gone = _class_photos(model, classes) | _file_photos(model, files)
        left = tuple(name for name in model.classes if name not in classes)
        check_left(model, left, gone)
        edit = Edit("forgot", tuple(classes), int(gone.sum()))
        return commit_edit(model, EditedClasses(left, gone), edit, began)


def rename_class(folder: Path, old: str, new: str) -> Update:
    """Make a step in which a class has another name."""
    began, store = time.monotonic(), editable_store(folder)
    _check_name(new)
    with store.locked():
        model = FrozenModel.open(folder)
        photos = int(_class_photos(model, [old]).sum())
        if new in model.classes:
            raise ValueError(
                f"{folder} knows {new!r} already; `densekd merge` makes one class of both, or "
                "choose another name."
            )
        classes = tuple(new if name == old else name for name in model.classes)
        edited = EditedClasses(classes, renamed={old: new})
        return commit_edit(model, edited, Edit("renamed", (old,), photos, new), began)


def merge_classes(folder: Path, name: str, into: str) -> Update:
    """Make a step in which the photos of the class ``name`` are photos of the class ``into``."""
    began, store = time.monotonic(), editable_store(folder)
    with store.locked():
        model = FrozenModel.open(folder)
        photos = int(_class_photos(model, [name]).sum())
        _class_photos(model, [into])
        if name == into:
            raise ValueError(f"{name!r} can't be merged into itself; name two classes.")
        classes = tuple(each for each in model.classes if each != name)
        edited = EditedClasses(classes, renamed={name: into})
        return commit_edit(model, edited, Edit("merged", (name,), photos, into), began)


def editable_store(folder: Path) -> Store:
    """The files of a model; raises if it doesn't keep the features of its photos."""
    store = Store(folder)
    if store.facts(store.existing().step).get("kind") != FROZEN:
        raise ValueError(
            f"{folder} was trained by a method, so its classes can't be changed; "
            "`densekd learn NEW_MODEL FOLDER` makes a new model of the photos you choose."
        )
    return store


@dataclass(frozen=True)
class EditedClasses:
    """The classes and photos of a step that adds no photos."""

    classes: tuple[str, ...]
    removed: Tensor | None = None  # whether each photo no longer counts
    renamed: Mapping[str, str] = field(default_factory=dict)  # old names to new or other ones


def commit_edit(model: FrozenModel, edited: EditedClasses, edit: Edit, began: float) -> Update:
    """Fit a head to the changed classes, and make it the current step; the lock is held.

    ``began`` is when the edit began, by the monotonic clock.
    """
    store, ranks = Store(model.folder), new_ranks(model.classes, edited.classes, edited.renamed)
    labels = torch.where(model.labels < 0, -1, ranks[model.labels])
    if edited.removed is not None:
        labels[edited.removed] = -1
    update = FrozenUpdate(
        store,
        store.existing().steps,
        model,
        model.backbone,
        edited.classes,
        labels,
        renamed=edited.renamed,
        edit=edit,
    )
    return update.commit(model.folder / "pending" / "edit" / "state", began)


def check_left(model: FrozenModel, classes: Sequence[str], gone: Tensor) -> None:
    """Raise unless each of the classes has photos when those that are ``gone`` are gone."""
    if not classes:
        raise ValueError(
            f"{model.folder} would have no class left; delete the folder to forget everything."
        )
    left = {model.classes[rank] for rank in model.labels[~gone].unique().tolist() if rank >= 0}
    empty = [name for name in classes if name not in left]
    if empty:
        raise ValueError(
            f"No photo of {quote_names(empty)} would be left; forget the class instead."
        )


def file_hash(file: Path) -> bytes:
    """The SHA-256 by which the photo in a file is known."""
    return sha256(read_regular_file(file, _MOST_BYTES)).digest()


def match_hashes(photos: Photos, hashes: Collection[bytes]) -> Tensor:
    """Whether each photo has one of the hashes, bool ``[n]``."""
    return torch.tensor([row.tobytes() in hashes for row in photos.hashes.numpy()]).bool()


def _class_photos(model: FrozenModel, classes: Sequence[str]) -> Tensor:
    """Whether each photo is of one of the classes; raises if the model doesn't know one."""
    for name in classes:
        if name not in model.classes:
            near = get_close_matches(name, model.classes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`densekd info` lists its classes."
            raise ValueError(f"{model.folder} knows no class {name!r}; {hint}")
    ranks = torch.tensor([model.classes.index(name) for name in classes], dtype=torch.int64)
    return torch.isin(model.labels, ranks)


def _file_photos(model: FrozenModel, files: Sequence[Path]) -> Tensor:
    """Whether each photo is one of the files; raises if the model wasn't taught one."""
    found = torch.zeros_like(model.labels, dtype=torch.bool)
    for file in files:
        own = (model.labels >= 0) & match_hashes(model.photos, {file_hash(file)})
        if not own.any():
            raise ValueError(
                f"{model.folder} doesn't have the photo {str(file)!r}; give the very file that it "
                "was taught, since photos are found by their content."
            )
        found |= own
    return found


def _check_name(name: str) -> None:
    """Raise if a class can't have this name: it must be fit for the name of a folder."""
    odd = any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)
    if odd or not name.strip() or name in (".", "..") or {*name} & {"/", "\\"}:
        raise ValueError(
            f"A class can't be called {name!r}; choose a name without slashes, backslashes and "
            "control characters."
        )
