"""An update of a model: a transaction that may be interrupted at any moment."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

from densekd.config.settings_tree import digest
from densekd.data.dataset import Split, join_splits
from densekd.model import calibration
from densekd.model.model import Model, write_state
from densekd.model.records import Plan, Update
from densekd.model.request import Request, done_before, read_request
from densekd.model.schedule import fitted, kept_schedule, seconds_per_epoch, total_seconds
from densekd.model.settings import TeachOptions
from densekd.training.callbacks import Callback, stoppable
from densekd.training.checkpoint import Checkpoints
from densekd.training.learner import Learned, Learner

# A state that was written must see so many images as the one in memory does.
_PROBED = 64


class TeachObserver(Callback):
    """Whom teaching reports to; this one takes no notice. `report` tells how far training is."""

    def reading(self, done: int, total: int) -> None:
        """Images are being read: so many of so many."""

    def planned(self, plan: Plan) -> None:
        """It is known what will be done, and training begins."""

    def doing(self, what: str) -> None:
        """Something else that may take a while begins: ``measuring``, ``testing``, ``saving``."""

    def repeated(self, step: int) -> None:
        """The same was learned before, in a step, so there is nothing to do."""


def teach(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver | None = None
) -> Update:
    """Teach a model the classes in a folder of images; makes the model if there is none.

    Until it has finished and been verified, the model is what it was. An update that was stopped
    goes on when it is asked for again, and ends with the same weights, bit for bit. One that is
    asked for again when it was the last is not done twice.

    Args:
        folder: of the model.
        source: has a sub-folder of images for each class, or ``train`` and ``val`` with such.
        options: how.
        observer: whom to tell.

    Raises:
        Stopped: when ``observer`` asked for it; how far it is was saved.
    """
    observer, began = observer or TeachObserver(), time.monotonic()
    reading = stoppable(observer.reading, observer)
    done = done_before(folder, source, options, reading)
    if done is not None:
        observer.repeated(done.step)
        return done
    request = read_request(folder, source, options, reading)
    with _in_words(folder), request.store.changing():
        if request.store.pointer() != request.pointer:
            raise ValueError(f"{folder} was changed while the images were read; try again.")
        return _update(request, observer, began)


def preview(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver | None = None
) -> Plan:
    """What `teach` would do, and how long it would take; nothing is changed."""
    observer, began = observer or TeachObserver(), time.monotonic()
    reading = stoppable(observer.reading, observer)
    done = done_before(folder, source, options, reading)
    if done is not None:
        raise ValueError(f"{source} was learned before, in step {done.step}; there is no more.")
    request = read_request(folder, source, options, reading)
    observer.doing("measuring")
    epoch = seconds_per_epoch(request, observer)
    config = request.config if options.budget is None else fitted(request, epoch, began)
    return request.plan(config, total_seconds(config, request, epoch), resumed=False)


def _update(request: Request, observer: TeachObserver, began: float) -> Update:
    pending = request.store.pending(digest([request.asked, request.parent]))
    checkpoints = Checkpoints(pending / "epochs")
    if request.options.budget is not None:
        observer.doing("measuring")
    config = kept_schedule(pending, request, observer, began)
    observer.planned(request.plan(config, None, resumed=checkpoints.newest() is not None))
    learner = request.learner(config)
    learned = learner.learn(request.task, callback=observer, checkpoints=checkpoints)
    observer.doing("testing")
    kept = [] if request.model is None else [request.model.kept()]
    test = join_splits([*kept, request.lesson.kept])
    values = learner.scores(test.images).cpu()
    update = _outcome(request, learner, learned, test, values.argmax(1) == test.labels)
    temperature = calibration.fit_temperature(values, test.labels)
    errors = [
        calibration.calibration_error((values / t).softmax(1), test.labels)
        for t in (1.0, temperature)
    ]
    mean, std = request.normalisation
    facts = {
        "asked": request.asked,
        "parent": request.parent,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "mean": mean,
        "std": std,
        "temperature": temperature,
        "calibration": dict(zip(("error_before", "error"), errors, strict=True)),
        "update": asdict(update),
    }
    observer.doing("saving")
    prepared = pending / "state"
    # Without the schedule, which was for this lesson: rounded, it would spoil the next one's.
    write_state(prepared, learner, request.settings, facts, request.lesson.kept)
    _verify(request, learner, prepared)
    request.store.commit(prepared, request.step)
    return update


def _outcome(
    request: Request, learner: Learner, learned: Learned, test: Split, after: torch.Tensor
) -> Update:
    """What is reported of an update; ``after`` tells which test images are named right."""
    lesson, known = request.lesson, len(request.known)
    before = None if request.model is None else calibration.right(request.model.learner, test)
    phases = learner.method.increment if known else learner.method.base
    return Update(
        request.step,
        lesson.learned,
        lesson.replayed,
        len(lesson.train) + len(lesson.more),
        phases[0].schedule.epochs,
        None if before is None else calibration.accuracy(before, test.labels, known),
        calibration.accuracy(after, test.labels, known),
        calibration.changes(learner.classes, test.labels, before, after, known),
        learned.seconds,
    )


def _verify(request: Request, learner: Learner, prepared: Path) -> None:
    """Raise unless what was written is what is in memory, and sees what that sees."""
    written = Model.read_from(request.store.folder, request.step, prepared).learner
    ours, theirs = learner.state(), written.state()
    same = all(torch.equal(x.cpu(), theirs.tensors[k].cpu()) for k, x in ours.tensors.items())
    both = join_splits([request.lesson.train, request.lesson.kept])
    probe = both.take(torch.arange(min(_PROBED, len(both)))).images
    seen, again = (each.scores(probe) for each in (learner, written))
    # On some devices the same sum isn't always added up in the same order.
    if not (
        same
        and ours.facts["classes"] == theirs.facts["classes"]
        and torch.allclose(seen, again, rtol=1e-3, atol=1e-3)
    ):
        raise RuntimeError(
            f"What was written to {prepared} is not what was learned; the model is what it was."
        )


@contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Say in one sentence that the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"There is no space left on the disk of {folder}; the model in it is intact. "
            "Free some space and repeat the command, which goes on where it was."
        ) from error
