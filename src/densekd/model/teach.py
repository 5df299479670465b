"""Teach a model new classes: a transaction that may be interrupted at any moment."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import digest, read_toml
from densekd.data.dataset import Split, join_splits
from densekd.files import write_atomically
from densekd.model.calibration import (
    calibration_error,
    class_changes,
    fit_temperature,
    split_accuracy,
)
from densekd.model.model import Model, write_state
from densekd.model.request import Plan, UpdateRequest, read_request, same_last_update
from densekd.model.settings import TeachOptions
from densekd.model.store import Update
from densekd.training.callbacks import Callback, stoppable
from densekd.training.checkpoint import Checkpoints
from densekd.training.learner import Learned, Learner

# The number of images on which a saved state is compared with the one in memory.
_VERIFIED_IMAGES = 64


class TeachObserver(Callback):
    """Receives the progress of an update, and may stop it; this one ignores everything."""

    def reading(self, done: int, total: int) -> None:
        """Called for each image that was read."""

    def planned(self, plan: Plan) -> None:
        """Called before training begins."""

    def doing(self, what: str) -> None:
        """Called before each of ``measuring``, ``testing`` and ``saving``."""

    def repeated(self, step: int) -> None:
        """Called if the same update was done before, in ``step``: nothing is done."""


def teach(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver | None = None
) -> Update:
    """Teach a model the classes in a folder of images; makes the model if there is none.

    The model doesn't change until the update is finished and verified. Repeat the call to continue
    an interrupted update; it ends with the same weights, bit for bit. If the last update was the
    same, nothing is done. Raises `Stopped` if ``observer`` asked for it; progress is saved.

    Args:
        folder: the model's folder.
        source: has a sub-folder of images for each class, or ``train`` and ``val`` with such.
        options: how to teach.
        observer: receives the progress.
    """
    observer, began = observer or TeachObserver(), time.monotonic()
    reading = stoppable(observer.reading, observer)
    done = same_last_update(folder, source, options, reading)
    if done is not None:
        observer.repeated(done.step)
        return done
    request = read_request(folder, source, options, reading)
    with _explain_full_disk(folder), request.store.locked():
        if request.store.pointer() != request.pointer:
            raise ValueError(f"{folder} was changed while the images were read; try again.")
        return _update(request, observer, began)


def preview(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver | None = None
) -> Plan:
    """Say what `teach` would do and how long it would take, without changing anything."""
    observer, began = observer or TeachObserver(), time.monotonic()
    reading = stoppable(observer.reading, observer)
    done = same_last_update(folder, source, options, reading)
    if done is not None:
        raise ValueError(f"{source} was learned in step {done.step} already; nothing is left.")
    request = read_request(folder, source, options, reading)
    observer.doing("measuring")
    config, seconds = request.timed(observer, began)
    return replace(request.plan(config), seconds=seconds)


def _update(request: UpdateRequest, observer: TeachObserver, began: float) -> Update:
    parent = None if request.pointer is None else request.pointer.step
    pending = request.store.folder / "pending" / digest([request.digest, parent])
    checkpoints = Checkpoints(pending / "epochs")
    config = _schedule(request, pending, observer, began)
    observer.planned(request.plan(config, resumed=checkpoints.newest() is not None))
    learner = request.learner(config)
    learned = learner.learn(request.task, callback=observer, checkpoints=checkpoints)
    observer.doing("testing")
    earlier = [] if request.model is None else [request.model.test_images()]
    test = join_splits([*earlier, request.images.test])
    values = learner.scores(test.images).cpu()
    update = _result(request, learner, learned, test, values.argmax(1) == test.labels)
    temperature = fit_temperature(values, test.labels)
    errors = [calibration_error((values / t).softmax(1), test.labels) for t in (1.0, temperature)]
    mean, std = request.normalisation
    facts = {
        "asked": request.digest,
        "parent": parent,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "mean": mean,
        "std": std,
        "temperature": temperature,
        "calibration": dict(zip(("error_before", "error"), errors, strict=True)),
        "update": asdict(update),
    }
    observer.doing("saving")
    prepared = pending / "state"
    # Without this update's schedule: scaling rounds it, and the next update scales the original.
    write_state(prepared, learner, request.settings, facts, request.images.test)
    _verify(request, learner, prepared)
    request.store.commit(prepared, request.step)
    return update


def _schedule(
    request: UpdateRequest, pending: Path, observer: TeachObserver, began: float
) -> Config:
    """The settings that an interrupted update began with, or new ones, which are saved."""
    file, config = pending / "config.toml", request.config
    if file.exists():
        return resolve(read_toml(file))
    if request.options.budget is not None:
        observer.doing("measuring")
        config, _ = request.timed(observer, began)
    write_atomically(file, as_toml(config))
    return config


def _result(
    request: UpdateRequest, learner: Learner, learned: Learned, test: Split, after: torch.Tensor
) -> Update:
    """The record of an update; ``after`` says which test images are predicted right."""
    images, known = request.images, len(request.known)
    before = None
    if request.model is not None:
        before = request.model.learner.scores(test.images).argmax(1).cpu() == test.labels
    phases = learner.method.increment if known else learner.method.base
    return Update(
        request.step,
        images.new_classes,
        images.replayed,
        len(images.train) + len(images.replay),
        phases[0].schedule.epochs,
        None if before is None else split_accuracy(before, test.labels, known),
        split_accuracy(after, test.labels, known),
        class_changes(learner.classes, test.labels, before, after, known),
        learned.seconds,
    )


def _verify(request: UpdateRequest, learner: Learner, prepared: Path) -> None:
    """Raise unless the saved state equals the one in memory and predicts the same."""
    saved = Model.read_from(request.store.folder, request.step, prepared).learner
    ours, theirs = learner.state(), saved.state()
    same = all(torch.equal(x.cpu(), theirs.tensors[k].cpu()) for k, x in ours.tensors.items())
    both = join_splits([request.images.train, request.images.test])
    probe = both.take(torch.arange(min(_VERIFIED_IMAGES, len(both)))).images
    # Some devices don't always add up in the same order.
    if not (
        same
        and ours.facts["classes"] == theirs.facts["classes"]
        and torch.allclose(learner.scores(probe), saved.scores(probe), rtol=1e-3, atol=1e-3)
    ):
        raise RuntimeError(
            f"The state saved in {prepared} differs from what was learned, so the model was not "
            "changed."
        )


@contextmanager
def _explain_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"There is no space left on the disk of {folder}; the model in it is intact. "
            "Free some space and repeat the command to continue."
        ) from error
