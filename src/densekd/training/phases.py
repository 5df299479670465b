"""The training of one task: its images, its phases, the terms of its loss, and its teacher."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from densekd.data.batches import Batch, Batches, RankShare, pairs
from densekd.data.dataset import Split, join_splits
from densekd.data.memory import ExemplarMemory
from densekd.data.scenario import Task
from densekd.data.stratify import held_count, oversample_rare, stratified_split
from densekd.methods.method import Method, Phase
from densekd.methods.terms import Stream, TaskContext, Term
from densekd.nn.network import Network
from densekd.seeds import Seeds
from densekd.training.checkpoint import select_prefix
from densekd.training.inference import extract_features
from densekd.training.settings import Settings


class ExternalTeacher(NamedTuple):
    """A network that teaches another one; their architectures may differ."""

    network: Network  # gives the teacher's logits; it is copied
    sizes: tuple[int, ...]  # how many of its logits belong to each task of the pool, in order


class TaskImages(NamedTuple):
    """The images a task is trained on; without exemplars, only ``new`` and ``reserved``."""

    new: Split  # images of the new classes to train on
    reserved: Split | None  # images of the new classes held out from the streams, now and later
    replayed: Split | None = None  # exemplars in the streams
    # Equally many exemplars of each class, old and new, without those held out.
    balanced: Split | None = None
    held_out: Split | None = None  # images of old and new classes that no stream has had
    exemplars: Split | None = None  # all exemplars of the old classes


class TaskTraining:
    """Everything that the phases of one task share.

    The teacher is the network before the task, or an external one, which also teaches in the base
    task.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        memory: ExemplarMemory,
        settings: Settings,
        network: Network,
        external_teacher: ExternalTeacher | None = None,
    ) -> None:
        self.task, self.method, self.memory, self.settings = task, method, memory, settings
        self.new_classes = len(task.classes)
        self.seeds = Seeds(settings.seed).at("task", task.number)
        self.images = select_images(task, method, memory, self.seeds)
        self._network, self._sizes = network, network.classifier.sizes
        self.phases = method.increment if self._sizes else method.base
        if external_teacher is None and self._sizes:
            external_teacher = ExternalTeacher(network, self._sizes)
        self._external_teacher = external_teacher
        self.teacher_sizes = () if external_teacher is None else external_teacher.sizes
        self.teacher: Network | None = None
        self.terms: dict[str, Term] = {}
        self.active_terms: dict[str, Term] = {}

    def begin(self, terms: Mapping[str, Term]) -> dict[str, float]:
        """Copy and prepare terms and teacher; returns what the terms record, by slot and name."""
        self.terms = copy.deepcopy(dict(terms))
        self.active_terms = {s: term for s, term in self.terms.items() if self._active(s, term)}
        context = self._context(self._network)
        with self._seeded("begin"):
            notes = {
                f"{slot}.{name}": value
                for slot, term in self.active_terms.items()
                for name, value in term.begin(context).items()
            }
        needed = any(term.needs_teacher for term in self.active_terms.values())
        if needed and self._external_teacher is not None:
            self.teacher = frozen_copy(self._external_teacher.network)
        return notes

    def lacks_images(self, phase: Phase) -> bool:
        """Whether a phase needs exemplars and there are none."""
        needed = {"balanced": self.images.balanced, "held-out": self.images.held_out}
        return phase.data in needed and needed[phase.data] is None

    def end(self, network: Network) -> None:
        """Show the trained network to the terms, and keep exemplars of the new classes."""
        new, features = self.images.new, None
        if self.memory.selection != "random":
            features = extract_features(network, new, self.settings).cpu()
        context = self._context(network)
        with self._seeded("end"):
            for term in self.terms.values():
                term.end(context)
        generator = self.seeds.generator("memory")
        self.memory.learn(new, self.new_classes, generator, features, self.images.reserved)

    def batches(self, images: Split, phase: Phase, seeds: Seeds, share: RankShare) -> Batches:
        """Batches of ``images``, of the size and with the augmentation of a phase."""
        augment = self.settings.augment.of(phase.augment, phase.mixup)
        size, workers = phase.schedule.batch_size, self.settings.workers_for(images.images)
        return Batches(images, size, augment, seeds, share, workers=workers)

    def _active(self, slot: str, term: Term) -> bool:
        """Whether a term takes part in this task: it has batches, and a teacher if it needs one."""
        exemplars = self.images.replayed is not None
        phases = [phase for phase in self.phases if not self.lacks_images(phase)]
        streams = set[Stream]().union(*(self.method.streams_of(p, exemplars) for p in phases))
        taught = self._external_teacher is not None or any(
            phase.teacher == "self" and slot in (phase.slots or ()) for phase in self.phases
        )
        return bool(streams & set(term.streams)) and (taught or not term.needs_teacher)

    def _seeded(self, place: str) -> AbstractContextManager[None]:
        """Seed torch's global generators alike on all ranks, for what terms draw from them."""
        return self.settings.engine.seeded(self.seeds.at(place).number("noise"))

    def _context(self, network: Network) -> TaskContext:
        kept = [] if self.images.exemplars is None else [self.images.exemplars]

        def batches() -> Iterator[Batch]:
            images, seeds = join_splits([self.task.train, *kept]), self.seeds.at("after")
            # Every rank gets all images, since the terms' state must be the same on all ranks.
            return self.batches(images, self.phases[0], seeds, RankShare()).epoch(0)

        return TaskContext(
            self.task,
            self._sizes,
            self.images.exemplars,
            lambda x: extract_features(network, x, self.settings),
            network,
            batches,
        )


class PhaseTraining:
    """One phase of a task: its batches, its terms and its teacher.

    It begins with ``network``, or resumes with ``saved``, the tensors of a checkpoint of the phase.
    """

    def __init__(
        self, task: TaskTraining, phase: Phase, network: Network, saved: Mapping[str, Tensor]
    ) -> None:
        self.task, self.phase = task, phase
        self._chosen: Tensor | None = None
        share = task.settings.engine.share
        self._batches = {
            stream: task.batches(images, phase, task.seeds.at(phase.name, stream), share)
            for stream, images in self._images(network, saved).items()
        }
        self.teacher = task.teacher
        if phase.teacher == "self":
            self.teacher = frozen_copy(network)
            if saved:
                self.teacher.load_state_dict(select_prefix(saved, "teacher."))
        self.terms = {
            slot: term
            for slot, term in task.active_terms.items()
            if phase.counts(slot) and (self.teacher is not None or not term.needs_teacher)
        }
        if not self.terms:
            raise ValueError(
                f"{task.method.name}: the phase {phase.name!r} has no loss without exemplars; keep "
                "some, or count a term in it that needs none."
            )

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(next(iter(self._batches.values())))

    def epoch(self, number: int, skip: int) -> Iterator[Mapping[Stream, Batch]]:
        """The batches of an epoch, by stream, without the first ``skip``."""
        if "exemplars" in self._batches:
            both = pairs(self._batches["new"], self._batches["exemplars"], number, skip=skip)
            return ({"new": new, "exemplars": old} for new, old in both)
        ((stream, batches),) = self._batches.items()
        return ({stream: batch} for batch in batches.epoch(number, skip=skip))

    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint must hold: they depend on the network at the phase's start."""
        tensors = {} if self._chosen is None else {"chosen": self._chosen}
        if self.phase.teacher == "self":
            assert self.teacher is not None
            tensors |= {f"teacher.{name}": x for name, x in self.teacher.state_dict().items()}
        return tensors

    def _images(self, network: Network, saved: Mapping[str, Tensor]) -> dict[Stream, Split]:
        images = self.task.images
        if self.phase.data == "held-out":
            assert images.held_out is not None
            return {"merged": images.held_out}
        if self.phase.data == "balanced":
            return {"merged": self._balanced(network, saved)}
        new = oversample_rare(images.new) if self.task.settings.oversample_rare else images.new
        if images.replayed is None:
            return {"merged": new} if self.task.method.streams == "merged" else {"new": new}
        if self.task.method.streams == "merged":
            return {"merged": join_splits([new, images.replayed])}
        return {"new": new, "exemplars": images.replayed}

    def _balanced(self, network: Network, saved: Mapping[str, Tensor]) -> Split:
        """Equally many images of each class, with new ones chosen by the network's features."""
        task, new = self.task, self.task.images.new
        if task.memory.selection == "random":
            assert task.images.balanced is not None
            return task.images.balanced
        self._chosen = saved.get("chosen")
        if self._chosen is None:
            features = extract_features(network, new, task.settings).cpu()
            generator = task.seeds.generator("memory")
            chosen = task.memory.choose(new, task.new_classes, generator, features)
            self._chosen = torch.cat(chosen)
        reserved, share = task.images.reserved, task.method.held_out
        return _balanced_images(task.memory, new, task.new_classes, self._chosen, reserved, share)


def select_images(task: Task, method: Method, memory: ExemplarMemory, seeds: Seeds) -> TaskImages:
    """Select the images that the phases of a task are trained on."""
    classes, share = len(task.classes), method.held_out
    quota = memory.quota.of(memory.classes + classes)
    new, reserved = task.train, None
    if share:
        new, reserved = stratified_split(task.train, share, seeds.number("split"), most=quota)
    if len(memory) == 0:
        return TaskImages(new, reserved)
    chosen = memory.choose(new, classes, seeds.generator("memory"))
    balanced = _balanced_images(memory, new, classes, torch.cat(chosen), reserved, share)
    if len(balanced) == 0:
        return TaskImages(new, reserved)
    exemplars = memory.exemplars()
    replayed, held_out = exemplars, None
    if reserved is not None:
        replayed, old = _split_held_out(exemplars, share, quota)
        # Trained on new classes alone, a bias correction would call every image new.
        if len(old) and len(reserved):
            held_out = join_splits([old, reserved])
    if method.streams == "split":
        replayed = balanced
    return TaskImages(new, reserved, replayed, balanced, held_out, exemplars)


def frozen_copy(network: Network) -> Network:
    """A copy in evaluation mode that takes no gradients: a teacher."""
    return copy.deepcopy(network).eval().requires_grad_(False)


def _balanced_images(
    memory: ExemplarMemory,
    new: Split,
    classes: int,
    chosen: Tensor,
    reserved: Split | None,
    share: float,
) -> Split:
    """Exemplars of all classes as they will be after the task, without those held out."""
    images = memory.rehearsed(new, classes, chosen, reserved)
    if reserved is None:
        return images
    return _split_held_out(images, share, memory.quota.of(memory.classes + classes))[0]


def _split_held_out(exemplars: Split, share: float, quota: int) -> tuple[Split, Split]:
    """Exemplars to train on, and those held out: the first of each class.

    If the quota shrinks, fewer are held out; the rest are trained on from then on.
    """
    counts = torch.bincount(exemplars.labels)
    held = torch.tensor([held_count(min(count, quota), share) for count in counts.tolist()])
    place = torch.arange(len(exemplars)) - (counts.cumsum(0) - counts)[exemplars.labels]
    first = place < held[exemplars.labels]
    return exemplars.take(~first), exemplars.take(first)
