"""What a task is trained on: which images, and in which batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from densekd.data.batches import Batch, Batches, pairs
from densekd.data.dataset import Split, join_splits
from densekd.data.memory import ExemplarMemory
from densekd.data.scenario import Task
from densekd.data.split import apart
from densekd.methods.method import Method, Phase, Streams
from densekd.methods.terms import Stream
from densekd.seeds import Seeds

Views = Mapping[Stream, Batch]


class Material(NamedTuple):
    """The images of a task; without exemplars there are only new ones."""

    new: Split
    rehearsed: Split | None  # in the streams, besides the new ones
    balanced: Split | None  # as many of each class, old and new
    held_out: Split | None  # of all classes, in neither of the first two
    exemplars: Split | None  # of the old classes, all of them


@dataclass(frozen=True)
class Feed:
    """The batches of a phase.

    Args:
        batches: how many an epoch has.
        epoch: epoch and how many batches to skip, to the batches of each stream.
    """

    batches: int
    epoch: Callable[[int, int], Iterator[Views]]


def gather(task: Task, method: Method, memory: ExemplarMemory, seeds: Seeds) -> Material:
    """Collect the images that the phases of a task are trained on."""
    classes = len(task.classes)
    balanced = None
    if len(memory):
        balanced = memory.rehearsed(task.train, classes, seeds.generator("memory"))
    if balanced is None or len(balanced) == 0:
        return Material(task.train, None, None, None, None)
    exemplars = memory.exemplars()
    if method.held_out:
        share, seed = method.held_out, seeds.number("split")
        old, tested = apart(exemplars, share, seed)
        # New classes alone would teach a bias stage that everything is new.
        if len(tested):
            most = max(1, len(tested) // memory.classes)
            new, new_tested = apart(task.train, share, seed, most=most)
            return Material(new, old, balanced, join_splits([tested, new_tested]), exemplars)
    rehearsed = exemplars if method.streams == "merged" else balanced
    return Material(task.train, rehearsed, balanced, None, exemplars)


def feed_of(
    material: Material,
    phase: Phase,
    streams: Streams,
    batches: Callable[[Split, Stream], Batches],
) -> Feed | None:
    """The batches of a phase; None if it is for exemplars and there are none.

    Args:
        material: the images.
        phase: says which of them.
        streams: how new images and exemplars come together.
        batches: makes the batches of a stream.
    """
    if phase.data != "streams":
        images = material.balanced if phase.data == "balanced" else material.held_out
        return None if images is None else _alone(batches(images, "merged"), "merged")
    if streams == "merged":
        parts = [material.new] if material.rehearsed is None else [material.new, material.rehearsed]
        return _alone(batches(join_splits(parts), "merged"), "merged")
    new = batches(material.new, "new")
    if material.rehearsed is None:
        return _alone(new, "new")
    exemplars = batches(material.rehearsed, "exemplars")
    return Feed(
        len(new),
        lambda epoch, skip: (
            {"new": n, "exemplars": e} for n, e in pairs(new, exemplars, epoch, skip=skip)
        ),
    )


def _alone(batches: Batches, stream: Stream) -> Feed:
    return Feed(
        len(batches),
        lambda epoch, skip: ({stream: batch} for batch in batches.epoch(epoch, skip=skip)),
    )
