"""What a task is trained on: which images, and in which batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from densekd.data.batches import Batch, Batches, pairs
from densekd.data.dataset import Split, join_splits
from densekd.data.memory import ExemplarMemory
from densekd.data.scenario import Task
from densekd.data.stratify import held_count, stratified_split
from densekd.methods.method import Method, Phase, Streams
from densekd.methods.terms import Stream
from densekd.seeds import Seeds

Views = Mapping[Stream, Batch]


class TaskImages(NamedTuple):
    """The images of a task; without exemplars there are only new ones."""

    new: Split  # to train on
    reserved: Split | None  # further new ones, kept from the streams in this task and later ones
    rehearsed: Split | None = None  # in the streams, besides the new ones
    balanced: Split | None = None  # as many of each class, old and new
    held_out: Split | None = None  # of all classes, and never in the streams so far
    exemplars: Split | None = None  # of the old classes, all of them


@dataclass(frozen=True)
class PhaseBatches:
    """The batches of a phase.

    Args:
        batches: how many an epoch has.
        epoch: epoch and how many batches to skip, to the batches of each stream.
        chosen: the new images among balanced ones, where the network chose them as it was when
            the phase began: saved with every epoch, since it could not be found again.
    """

    batches: int
    epoch: Callable[[int, int], Iterator[Views]]
    chosen: Tensor | None = None


def gather(task: Task, method: Method, memory: ExemplarMemory, seeds: Seeds) -> TaskImages:
    """Collect the images that the phases of a task are trained on."""
    classes, share = len(task.classes), method.held_out
    quota = memory.quota.of(memory.classes + classes)
    new, reserved = task.train, None
    if share:
        new, reserved = stratified_split(task.train, share, seeds.number("split"), most=quota)
    if len(memory) == 0:
        return TaskImages(new, reserved)
    chosen = memory.choose(new, classes, seeds.generator("memory"))
    balanced = memory.rehearsed(new, classes, torch.cat(chosen))
    if len(balanced) == 0:
        return TaskImages(new, reserved)
    exemplars = memory.exemplars()
    rehearsed, held_out = exemplars if method.streams == "merged" else balanced, None
    if reserved is not None:
        rehearsed, tested = _but_first(exemplars, share, quota)
        # Classes of one kind alone would teach a bias stage that everything is of that kind.
        if len(tested) and len(reserved):
            held_out = join_splits([tested, reserved])
    return TaskImages(new, reserved, rehearsed, balanced, held_out, exemplars)


def _but_first(exemplars: Split, share: float, quota: int) -> tuple[Split, Split]:
    """Exemplars, class by class, without the first of each; and these, which were held out.

    A class that will have to do with fewer exemplars gives up some that were held out.
    """
    counts = torch.bincount(exemplars.labels)
    held = torch.tensor([held_count(min(count, quota), share) for count in counts.tolist()])
    place = torch.arange(len(exemplars)) - (counts.cumsum(0) - counts)[exemplars.labels]
    first = place < held[exemplars.labels]
    rest, tested = (exemplars.take(torch.nonzero(part).flatten()) for part in (~first, first))
    return rest, tested


def feed_of(
    material: TaskImages,
    phase: Phase,
    streams: Streams,
    batches: Callable[[Split, Stream], Batches],
    chosen: Tensor | None = None,
) -> PhaseBatches | None:
    """The batches of a phase; None if it is for exemplars and there are none.

    Args:
        material: the images.
        phase: says which of them.
        streams: how new images and exemplars come together.
        batches: makes the batches of a stream.
        chosen: see `PhaseBatches`.
    """
    if phase.data != "streams":
        images = material.balanced if phase.data == "balanced" else material.held_out
        return None if images is None else _alone(batches(images, "merged"), "merged", chosen)
    if streams == "merged":
        parts = [material.new] if material.rehearsed is None else [material.new, material.rehearsed]
        return _alone(batches(join_splits(parts), "merged"), "merged")
    new = batches(material.new, "new")
    if material.rehearsed is None:
        return _alone(new, "new")
    exemplars = batches(material.rehearsed, "exemplars")
    return PhaseBatches(
        len(new),
        lambda epoch, skip: (
            {"new": n, "exemplars": e} for n, e in pairs(new, exemplars, epoch, skip=skip)
        ),
    )


def _alone(batches: Batches, stream: Stream, chosen: Tensor | None = None) -> PhaseBatches:
    return PhaseBatches(
        len(batches),
        lambda epoch, skip: ({stream: batch} for batch in batches.epoch(epoch, skip=skip)),
        chosen,
    )
