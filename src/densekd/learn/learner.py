"""A learner: a network, what it keeps of the past, and a method to learn the next task by."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from densekd.data.augment import Augment
from densekd.data.batches import Batch, Batches, Share, in_order
from densekd.data.dataset import Images, Split, join_splits
from densekd.data.memory import EVERYTHING, ExemplarMemory
from densekd.data.scenario import Task
from densekd.learn.checkpoint import Checkpoints, State, load_state, save_state
from densekd.learn.engine import Engine
from densekd.learn.loop import Job, Loop, Position, frozen, position_of
from densekd.learn.material import Feed, Material, feed_of, gather
from densekd.learn.watch import Watch
from densekd.methods.method import Method, Phase, Schedule
from densekd.methods.terms import Occasion, Stream, Term
from densekd.nn.heads import HEADS
from densekd.nn.network import Backbone, Network
from densekd.seeds import Seeds

# Images in a batch where nothing is learned, which needs less memory than training.
_READ_AT_ONCE = 256


@dataclass(frozen=True)
class Settings:
    """What is the same for all methods.

    Args:
        augment: how images are augmented and normalised.
        seed: of all random streams.
        engine: where and how it is computed.
        workers: processes that decode images in files.
    """

    augment: Augment
    seed: int = 1993
    engine: Engine = field(default_factory=Engine)
    workers: int = 0


@dataclass(frozen=True)
class Learned:
    """What learning a task took.

    Args:
        seconds: of training.
        images: that were trained on, repetitions counted, over all streams.
        notes: what terms recorded, such as lambda, by slot and name.
    """

    seconds: float
    images: int
    notes: Mapping[str, float]


class Seen(NamedTuple):
    """What the network makes of many images."""

    logits: Tensor  # [n, classes]
    features: Tensor  # [n, D]


class Learner:
    """Learns one task at a time, and keeps what it learned before.

    Args:
        backbone: gives features; an ``nn.Module`` with an attribute ``width``.
        method: how to learn. The learner works with a copy of its terms.
        memory: keeps exemplars.
        settings: what does not depend on the method.
    """

    def __init__(
        self, backbone: Backbone, method: Method, memory: ExemplarMemory, settings: Settings
    ) -> None:
        self.method = method
        self.settings = settings
        self.classes: tuple[str, ...] = ()
        self.memory = memory
        if method.keeps == "everything":
            self.memory = ExemplarMemory(EVERYTHING)
        self.terms = copy.deepcopy(dict(method.terms))
        self.network = Network(backbone, HEADS[method.head](backbone.width))
        settings.engine.placed(self.network)
        settings.augment.to(settings.engine.device)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task learned."""
        return self.network.classifier.sizes

    def learn(
        self, task: Task, *, watch: Watch | None = None, checkpoints: Checkpoints | None = None
    ) -> Learned:
        """Learn the next task.

        Until it is learned, the learner is what it was. If learning is interrupted and begun
        again with the same checkpoints, it ends with the same weights, bit for bit.

        Args:
            task: new classes, whose labels are the next ranks.
            watch: whom to tell how far it is.
            checkpoints: where to save how far it is. When the task is learned they hold its
                trained network, and learning it again from there takes no time.
        """
        if task.first != len(self.classes):
            raise ValueError(
                f"Task {task.number} begins with class {task.first}, "
                f"but {len(self.classes)} classes were learned."
            )
        counts = torch.bincount(task.train.labels - task.first, minlength=len(task.classes))
        if not counts.all():
            empty = task.classes[int(counts.argmin())]
            raise ValueError(
                f"The class {empty!r} has no image to learn from; add some, or leave it out."
            )
        old, seeds = self.sizes, Seeds(self.settings.seed).at("task", task.number)
        material = gather(task, self.method, self.memory, seeds)
        student = self._grown(task, seeds)
        before = self._occasion(task, material, self.network, seeds)
        # Copies, which replace the learner's own when the task is learned.
        own = copy.deepcopy(self.terms)
        terms = self._active(own, material)
        notes = {
            f"{slot}.{name}": value
            for slot, term in terms.items()
            for name, value in term.begin(before).items()
        }
        taught = bool(old) and any(term.needs_teacher for term in terms.values())
        teacher = frozen(self.network) if taught else None
        save = self._saver(checkpoints)
        job = Job(task.number, student, teacher, terms, old, len(task.classes), seeds, save)
        saved = None if checkpoints is None else checkpoints.newest()
        position = self._train(job, material, watch or Watch(), saved)
        self._keep(student, own, seeds, self._occasion(task, material, student, seeds))
        return Learned(position.seconds, position.images, notes)

    def logits(self, images: Images) -> Tensor:
        """The logits of images, ``[n, classes]``, by the network as it is."""
        return self.see(images).logits

    def predict(self, images: Images) -> list[str]:
        """The names of the classes that the method finds most likely."""
        seen = self.see(images)
        means = self.class_means() if self.method.predicts == "nearest-mean" else None
        ranks = seen.logits.argmax(1) if means is None else nearest_mean(seen.features, means)
        return [self.classes[rank] for rank in ranks.tolist()]

    def class_means(self) -> Tensor | None:
        """ICaRL's class means, unit vectors ``[classes, D]``, by the network as it is.

        The mean of the L2-normalised features of a class's exemplars and their mirror images,
        normalised again. None without exemplars.
        """
        if len(self.memory) == 0:
            return None
        exemplars = self.memory.exemplars()
        both = [self.see(exemplars.images, flipped=flipped).features for flipped in (False, True)]
        unit = normalize(both[0], dim=1) + normalize(both[1], dim=1)
        sums = unit.new_zeros(len(self.classes), unit.shape[1])
        sums.index_add_(0, exemplars.labels.to(unit.device), unit)
        return normalize(sums, dim=1)  # the length of a mean doesn't matter, so neither do counts

    def see(self, images: Images, *, flipped: bool = False) -> Seen:
        """Logits and pooled features of images, or of their mirror images."""
        data = Split(images, torch.zeros(len(images), dtype=torch.int64))
        empty = Seen(
            torch.empty(0, len(self.classes)), torch.empty(0, self.network.classifier.width)
        )
        seen = [
            Seen(out.logits.float(), out.features.float())
            for out in self._read(self.network, self.network, data, flipped)
        ]
        return Seen(*(torch.cat(parts) for parts in zip(*seen, strict=True))) if seen else empty

    def save(self, folder: Path) -> None:
        """Write all that was learned to a folder, atomically."""
        save_state(folder / "learner", self.state())

    @classmethod
    def load(
        cls,
        folder: Path,
        backbone: Backbone,
        method: Method,
        memory: ExemplarMemory,
        settings: Settings,
    ) -> "Learner":
        """Read what `save` wrote; what the learner is made of is given as it was."""
        learner = cls(backbone, method, memory, settings)
        learner.load_state(load_state(folder / "learner"))
        return learner

    def state(self) -> State:
        """All that was learned: names, weights, exemplars, what terms keep."""
        parts = {
            "network": self.network.state_dict(),
            "memory": self.memory.state_dict(),
            **{f"term.{slot}": term.state_dict() for slot, term in self.terms.items()},
        }
        tensors = {f"{part}.{k}": x for part, state in parts.items() for k, x in state.items()}
        facts = {"method": self.method.name, "classes": list(self.classes), "sizes": self.sizes}
        return State(facts, tensors)

    def load_state(self, state: State) -> None:
        """Become what `state` was taken of."""
        if self.classes:
            raise ValueError("This learner has learned something; load into a new one.")
        if state.facts["method"] != self.method.name:
            raise ValueError(
                f"This was learned by {state.facts['method']}, not by {self.method.name}."
            )
        for size in state.facts["sizes"]:
            self.network.grow(size)
        self.settings.engine.placed(self.network)
        self.network.load_state_dict(_part(state.tensors, "network."))
        self.memory.load_state_dict(_part(state.tensors, "memory."))
        for slot, term in self.terms.items():
            term.load_state_dict(_part(state.tensors, f"term.{slot}."))
        self.classes = tuple(state.facts["classes"])

    def _grown(self, task: Task, seeds: Seeds) -> Network:
        """A copy of the network with room for new classes, which is what will be trained."""
        student = copy.deepcopy(self.network)
        # The layers that torch draws itself take no generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number("init"))
            student.grow(len(task.classes))
        self.settings.engine.placed(student)
        if self.method.imprints and self.sizes:
            features = self._features(self.network, task.train)
            labels = task.train.labels.to(features.device) - task.first
            student.classifier.imprint(features, labels, seeds.number("init"))
        return student

    def _occasion(self, task: Task, material: Material, network: Network, seeds: Seeds) -> Occasion:
        schedule = self._phases()[0].schedule
        kept = [] if material.exemplars is None else [material.exemplars]

        def batches() -> Iterator[Batch]:
            images = join_splits([task.train, *kept])
            # Every rank sees all of it, since what terms keep has to be the same on all.
            return self._batches(images, schedule, seeds.at("after"), Share()).epoch(0)

        return Occasion(
            task,
            self.sizes,
            material.exemplars,
            lambda x: self._features(network, x),
            network,
            batches,
        )

    def _active(self, terms: dict[str, Term], material: Material) -> dict[str, Term]:
        """The terms that have a part in this task: those with a batch, and a teacher if need be."""
        streams = {"merged"} if self.method.streams == "merged" else {"new"}
        if material.rehearsed is not None and self.method.streams == "split":
            streams.add("exemplars")
        teaching = {
            slot
            for phase in self._phases()
            if phase.teacher == "self"
            for slot in phase.slots or ()
        }
        return {
            slot: term
            for slot, term in terms.items()
            if streams & set(term.streams)
            and (self.sizes or not term.needs_teacher or slot in teaching)
        }

    def _phases(self) -> tuple[Phase, ...]:
        """The phases of the next task."""
        return self.method.increment if self.sizes else self.method.base

    def _train(self, job: Job, material: Material, watch: Watch, saved: State | None) -> Position:
        """Go through all phases, or through those that ``saved`` leaves to be done."""
        position = Position(job.task) if saved is None else position_of(saved)
        if position.task != job.task:
            raise ValueError(
                f"These checkpoints are of task {position.task + 1}, not of task {job.task + 1}; "
                "give each task its own."
            )
        for phase in self._phases()[position.phase :]:
            feed = self._feed(material, phase, job.seeds.at(phase.name))
            if feed is None:
                position.phase += 1
                continue
            loop = Loop(self.settings.engine, job, phase, feed)
            if saved is not None:
                loop.load(saved)
                saved = None
            loop.run(position, watch)
        job.network.requires_grad_(True)
        return position

    def _feed(self, material: Material, phase: Phase, seeds: Seeds) -> Feed | None:
        def batches(images: Split, stream: Stream) -> Batches:
            share = self.settings.engine.share
            return self._batches(images, phase.schedule, seeds.at(stream), share)

        return feed_of(material, phase, self.method.streams, batches)

    def _batches(self, images: Split, schedule: Schedule, seeds: Seeds, share: Share) -> Batches:
        settings = self.settings
        return Batches(
            images, schedule.batch_size, settings.augment, seeds, share, workers=settings.workers
        )

    def _keep(
        self, student: Network, terms: dict[str, Term], seeds: Seeds, after: Occasion
    ) -> None:
        """Take over what was trained, with exemplars and what terms keep of the task."""
        task, herded = after.task, None
        if self.memory.selection != "random":
            herded = after.features(task.train).cpu()
        for term in terms.values():
            term.end(after)
        self.memory.learn(task.train, len(task.classes), seeds.generator("memory"), herded)
        self.network, self.terms = student, terms
        self.classes += task.classes

    def _features(self, network: Network, data: Split) -> Tensor:
        """Pooled features ``[n, D]``, without the logits, which may be many."""
        seen = [batch.pooled.float() for batch in self._read(network, network.backbone, data)]
        return torch.cat(seen) if seen else torch.empty(0, network.classifier.width)

    def _read(
        self, network: Network, module: nn.Module, data: Split, flipped: bool = False
    ) -> Iterator[Any]:
        """What a module of the network makes of each batch, while nothing is learned."""
        settings = self.settings
        was_training = network.training
        network.eval()
        for batch in in_order(data, _READ_AT_ONCE, settings.augment, workers=settings.workers):
            images = batch.images.flip(-1) if flipped else batch.images
            with torch.inference_mode(), settings.engine.autocast():
                seen = module(settings.engine.laid_out(images))
            yield seen
        network.train(was_training)

    def _saver(self, checkpoints: Checkpoints | None) -> Callable[[State, Position], None]:
        def save(state: State, position: Position) -> None:
            if checkpoints is not None and self.settings.engine.first:
                checkpoints.save(position.done, state)

        return save


def nearest_mean(features: Tensor, means: Tensor) -> Tensor:
    """The nearest mean of each normalised feature: ``[n, D]`` and ``[classes, D]`` to ``[n]``.

    Between unit vectors the smallest distance is the largest product.
    """
    return (normalize(features, dim=1) @ means.T).argmax(1)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
