"""Erase classes and photos from every state of a model, for privacy.

The erasure is recorded first, so that it can be finished after an interruption. Erased photos keep
their places, without content, so that states and photos match at any moment.
"""

import logging
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from densekd.data.folder import quote_names
from densekd.files import DamagedFile, read_sealed_json, sync_folder, write_sealed_json
from densekd.model.calibration import class_changes
from densekd.model.frozen.edit import commit_edit, editable_store, file_hash, match_hashes
from densekd.model.frozen.model import FrozenModel, write_frozen_state
from densekd.model.frozen.photos import Photos, join_photos, load_photos
from densekd.model.frozen.update import FittedState, fit_state, new_ranks, relabel
from densekd.model.pointer import step_numbers
from densekd.model.store import Accuracy, ClassChange, Edit, Store, Update
from densekd.training.checkpoint import State, load_state, remove_unused, save_state

logger = logging.getLogger(__name__)

_ERASED = "(erased)"  # replaces an erased name in the record of a step


class Erasure(NamedTuple):
    """What to erase."""

    step: int  # the step that the erasure makes
    hashes: frozenset[bytes]  # of photos
    names: frozenset[str]  # of classes that have no photo left in some state


def erase(folder: Path, classes: Sequence[str], files: Sequence[Path] = ()) -> Update:
    """Make a step without these classes and photos, and erase them from all other steps.

    Nothing of the photos is left in the model's files: no features, images or hashes, and nothing
    that heads learned from them. Photos are identified by their content, so a photo of an erased
    class is also erased from other classes that it was taught as, with a warning. A step that has
    no class left can't be opened.

    ``classes`` are names that a class has, or had in any step. If the process is killed, the model
    still opens; repeat the call to finish, or call it without classes and files.
    """
    store = editable_store(folder)
    with store.locked(to_erase=True):
        if store.erasing.exists():
            unfinished = read_erasure(store.erasing)
            update = _carry_out(store, unfinished)
            # A class of the finished erasure may still have photos in some steps: erase these too.
            left = {name for own in _taught(store).values() for name, _ in own}
            classes = [n for n in classes if n in left or n not in unfinished.names]
            files = [file for file in files if _is_left(file, unfinished)]
            if not classes and not files:
                return update
        also, erasure = also_erased(folder, classes, files), _prepare(store, classes, files)
        for sentence in also:
            logger.warning("%s", sentence)
        hashes, names = sorted(each.hex() for each in erasure.hashes), sorted(erasure.names)
        content = {"step": erasure.step, "hashes": hashes, "names": names}
        write_sealed_json(store.erasing, content)
        return _carry_out(store, erasure)


def also_erased(
    folder: Path, classes: Sequence[str], files: Sequence[Path] = ()
) -> tuple[str, ...]:
    """A sentence for each thing that `erase` would erase beyond what is named.

    These are photos in other classes of the current step that were once in a named class, and
    unfinished updates if a named class is in no step.
    """
    store = editable_store(folder)
    taught = _taught(store)
    given = {file_hash(file) for file in files if file.exists()}
    once = {
        name: {own for step in taught.values() for each, own in step if each == name} - given
        for name in classes
    }
    current, found = taught.get(store.require_pointer().step, set()), []
    unknown = [name for name, hashes in once.items() if not hashes]
    if unknown and store.pending.exists():
        found.append(
            f"No step has {quote_names(unknown)}, so this only removes unfinished updates, which "
            "may have it."
        )
    for name in sorted({each for each, _ in current}.difference(classes)):
        own = {hashed for each, hashed in current if each == name}
        gone = {was: own & hashes for was, hashes in once.items() if own & hashes}
        if gone:
            count = len(set[bytes]().union(*gone.values()))
            some = f"{count:,} of the {len(own):,} photos"
            if count == len(own):
                some = "the only photo" if count == 1 else f"all {count:,} photos"
            once_called = f"which {'was' if count == 1 else 'were'} once called"
            found.append(
                f"This also erases {some} of {name!r}, {once_called} {quote_names([*gone])}."
            )
    return tuple(found)


def _is_left(file: Path, finished: Erasure) -> bool:
    """Whether a photo must still be erased after the interrupted erasure was finished."""
    try:
        return file_hash(file) not in finished.hashes
    except FileNotFoundError:
        logger.warning(
            "There is no file %s, so it is unknown whether this photo was erased; the interrupted "
            "erasure is finished.",
            file,
        )
        return False


def read_erasure(file: Path) -> Erasure:
    """Read what is being erased; raises `DamagedFile` if the file doesn't say it."""
    try:
        content = read_sealed_json(file, unsealed=True)
        hashes = frozenset(map(bytes.fromhex, content["hashes"]))
        return Erasure(int(content["step"]), hashes, frozenset(map(str, content["names"])))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFile(
            f"{file} doesn't say what is being erased; set it aside with `densekd check "
            f"{file.parent} --repair`, and then erase the same classes and photos again."
        ) from error


def _prepare(store: Store, classes: Sequence[str], files: Sequence[Path]) -> Erasure:
    """Find the photos in all steps; raises ValueError if nothing can be erased, or nothing is left.

    If no step has a class or photo, an unfinished update might: then all of these are removed.
    """
    if not classes and not files:
        raise ValueError("Name a class or a photo to forget everywhere.")
    pointer, taught = store.require_pointer(), _taught(store)
    if pointer.step not in taught:
        raise ValueError(
            f"Photos of step {pointer.step} of {store.folder} are lost, so its head can't be "
            "fitted again without the erased ones; go back to an earlier step with `densekd undo`, "
            "and then erase."
        )
    every = set[tuple[str, bytes]]().union(*taught.values())
    known = {name: {h for each, h in every if each == name} for name in classes}
    given, present = {file: file_hash(file) for file in files}, {h for _, h in every}
    hashes = {*given.values()}.union(*known.values())
    unknown = [name for name, own in known.items() if not own]
    unknown += [str(file) for file, own in given.items() if own not in present]
    if unknown:
        nowhere = f"No step of {store.folder} has {quote_names(unknown)}"
        if store.pending.exists():  # unfinished updates don't record whose features they have
            shutil.rmtree(store.pending)
            raise ValueError(
                f"{nowhere}, so only unfinished updates, which may have it, were removed."
            )
        raise ValueError(f"{nowhere}; check the names.")
    left = {step: {n for n, h in own if h not in hashes} for step, own in taught.items()}
    if not left[pointer.step]:
        out = "delete the folder to erase everything"
        if any(left.values()):  # other steps keep classes, which the folder's deletion would lose
            out = f"go to a step that keeps some with `densekd undo {store.folder} --to N` first"
        raise ValueError(f"Step {pointer.step} of {store.folder} would have no class left; {out}.")
    gone = {name for step, own in taught.items() for name, _ in own if name not in left[step]}
    return Erasure(pointer.steps, frozenset(hashes), frozenset(gone))


def _taught(store: Store) -> dict[int, set[tuple[str, bytes]]]:
    """For each step that lost no photos, the class and the hash of each photo in a class."""
    photos, found = _load_all_photos(store), {}
    for step in store.steps(store.require_pointer()):
        facts, tensors = load_state(store.path(step) / "state")
        if not photos.keys() >= {*facts["photos"]}:
            continue
        rows = torch.cat([photos[s].hashes for s in facts["photos"]]).numpy()
        ranks = tensors["labels"].tolist()
        found[step] = {
            (facts["classes"][rank], row.tobytes())
            for rank, row in zip(ranks, rows, strict=True)
            if rank >= 0 and row.any()  # an unfinished erasure leaves labels of erased photos
        }
    return found


def _carry_out(store: Store, erasure: Erasure) -> Update:
    """Carry out an erasure, or what is left of an interrupted one."""
    if store.require_pointer().steps == erasure.step:
        _commit_step(store, erasure)
    pointer = store.require_pointer()
    # Delete all that is unfinished, set aside or not committed, rather than erase photos from it.
    uncounted = [store.path(n) for n in step_numbers(store.folder) if n >= pointer.steps]
    for place in (store.pending, store.aside, *uncounted):
        if place.exists():
            shutil.rmtree(place)
    photos = _load_all_photos(store)
    for step, part in photos.items():
        gone = match_hashes(part, erasure.hashes)
        if gone.any():
            photos[step] = part.erase(gone)
            photos[step].save(store.path(step) / "photos")
            _warn_if_finetuned(store, step)
    for step in store.steps(pointer):
        _rewrite_state(store, step, photos, erasure.names)
    for step in step_numbers(store.folder):
        remove_unused(store.path(step))
    store.erasing.unlink()
    sync_folder(store.folder)
    return store.entry(erasure.step, pointer).update


def _warn_if_finetuned(store: Store, step: int) -> None:
    # If its state is lost, others may still need its photos.
    if step not in store.steps(store.require_pointer()):
        return
    facts = store.facts(step)
    if facts["backbone"] == step and facts["parent"] is not None:
        logger.warning(
            "The network of step %d was fine-tuned on photos that are erased now, and what it "
            "learned from them can't be erased; to remove that too, teach a new model without "
            "them.",
            step,
        )


def _commit_step(store: Store, erasure: Erasure) -> None:
    """Commit a step without the photos, which becomes the current one."""
    began, model = time.monotonic(), FrozenModel.open(store.folder)
    gone = match_hashes(model.photos, erasure.hashes)
    labels = model.labels.masked_fill(gone, -1)
    edit = Edit("erased", (), len(erasure.hashes))
    commit_edit(model, edit, began, _classes_left(model.classes, labels), labels)


def _rewrite_state(
    store: Store, step: int, photos: Mapping[int, Photos], names: Collection[str]
) -> None:
    """Refit a state without the erased photos, and remove the names from it.

    If photos of it were lost, the state is deleted, since its heads may have learned from erased
    ones.
    """
    path, pointer = store.path(step) / "state", store.require_pointer()
    facts, tensors = load_state(path)
    if not photos.keys() >= {*facts["photos"]}:
        path.with_suffix(".json").unlink()
        logger.warning("Step %d is deleted: photos of it were lost, so it can't be refitted.", step)
        return
    recorded = store.entry(step, pointer).update
    update = replace(recorded, edit=recorded.edit and _without_names(recorded.edit, names))
    own = join_photos([photos[s] for s in facts["photos"]])
    if not (tensors["labels"][own.erased] >= 0).any():
        if update != recorded:
            save_state(path, State({**facts, "update": asdict(update)}, tensors))
        return
    labels = tensors["labels"].masked_fill(own.erased, -1)
    classes = _classes_left(facts["classes"], labels)
    labels = relabel(labels, new_ranks(facts["classes"], classes, {}))
    fitted = fit_state(own, labels, len(classes)) if classes else None
    facts |= {
        "classes": classes,
        "learned_in": {name: facts["learned_in"][name] for name in classes},
        "update": asdict(_measured(update, classes, labels, fitted)),
    }
    if step in photos and photos[step].erased.any():
        facts["asked"] = ""  # the digest is of all photos, also of those erased
    if fitted is None:
        save_state(path, State(facts, {"labels": labels}))
    else:
        write_frozen_state(path.parent, {**facts, **fitted.calibration}, labels, fitted.heads)


def _measured(
    update: Update, classes: Sequence[str], labels: Tensor, fitted: FittedState | None
) -> Update:
    """The record of an update, limited to the classes that are left and their accuracy."""
    learned = tuple(name for name in update.learned if name in classes)
    earlier = {each.name: each.before for each in update.classes}
    changes: list[ClassChange] = []
    if fitted is not None:
        found = class_changes(classes, labels[fitted.tested], None, fitted.right, 0)
        changes = [replace(each, before=earlier[each.name]) for each in found]
    was = [(each.name in learned, each.tested, each.before) for each in changes]
    now = [(each.name in learned, each.tested, each.after) for each in changes]
    return replace(
        update,
        learned=learned,
        replayed=tuple(name for name in update.replayed if name in classes),
        before=update.before and _accuracy(was),
        after=_accuracy(now),
        classes=tuple(changes),
    )


def _accuracy(classes: Sequence[tuple[bool, int, float | None]]) -> Accuracy:
    """Mean accuracy over classes, each given as is-new, number of test photos, and accuracy."""

    def mean(chosen: Sequence[tuple[bool, int, float | None]]) -> float | None:
        total = sum(tested for _, tested, _ in chosen)
        right = sum(tested * (value or 0.0) for _, tested, value in chosen)
        return right / total if total else None

    new = [each for each in classes if each[0]]
    return Accuracy(mean(new), mean([each for each in classes if not each[0]]), mean(classes))


def _without_names(edit: Edit, names: Collection[str]) -> Edit:
    classes = tuple(_ERASED if name in names else name for name in edit.classes)
    return replace(edit, classes=classes, into=_ERASED if edit.into in names else edit.into)


def _classes_left(classes: Sequence[str], labels: Tensor) -> tuple[str, ...]:
    """The classes that have photos."""
    return tuple(name for rank, name in enumerate(classes) if (labels == rank).any())


def _load_all_photos(store: Store) -> dict[int, Photos]:
    """The photos of each step that has some, even without its state: other steps may need them."""
    steps = store.require_pointer().steps
    paths = {n: store.path(n) / "photos" for n in step_numbers(store.folder) if n < steps}
    return {
        step: load_photos(path)
        for step, path in paths.items()
        if path.with_suffix(".json").exists()
    }
