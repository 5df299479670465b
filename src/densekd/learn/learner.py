"""A learner: a network, what it keeps of the past, and a method to learn the next task by."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.batches import Batches, in_order, pairs
from densekd.data.dataset import Images, Split, join_splits
from densekd.data.memory import EVERYTHING, ExemplarMemory
from densekd.data.scenario import Task
from densekd.learn.checkpoint import Checkpoints, State, load_state, save_state
from densekd.learn.engine import Engine
from densekd.learn.loop import Feed, Job, Loop, Position, position_of
from densekd.learn.watch import Watch
from densekd.methods.method import Method, Phase
from densekd.methods.terms import Occasion, Stream, Term
from densekd.nn.classifier import CosineClassifier, LinearClassifier
from densekd.nn.network import Backbone, Network
from densekd.seeds import Seeds

# Images in a batch where nothing is learned, which needs less memory than training.
_READ_AT_ONCE = 256

# New images, and what is rehearsed with them.
Sources = tuple[Split, Split | None]


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
        head = CosineClassifier if method.head == "cosine" else LinearClassifier
        self.network = Network(backbone, head(backbone.width))
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
        old, seeds = self.sizes, Seeds(self.settings.seed).at("task", task.number)
        student = self._grown(len(task.classes), seeds)
        before = self._occasion(task, old, self.network)
        rehearsed = self._rehearsed(task, seeds) if old else None
        terms = self._active(old, rehearsed)
        notes = {
            f"{slot}.{name}": value
            for slot, term in terms.items()
            for name, value in term.begin(before).items()
        }
        teacher = self._teacher() if any(t.needs_teacher for t in terms.values()) else None
        save = self._saver(checkpoints)
        job = Job(task.number, student, teacher, terms, old, len(task.classes), seeds, save)
        saved = None if checkpoints is None else checkpoints.newest()
        position = self._train(job, (task.train, rehearsed), watch or Watch(), saved)
        self._keep(task, student, seeds, self._occasion(task, old, student))
        return Learned(position.seconds, position.images, notes)

    def logits(self, images: Images) -> Tensor:
        """The logits of images, ``[n, classes]``, by the network as it is."""
        return self.see(images).logits

    def predict(self, images: Images) -> list[str]:
        """The names of the classes that the network finds most likely."""
        return [self.classes[rank] for rank in self.logits(images).argmax(1).tolist()]

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

    def _grown(self, classes: int, seeds: Seeds) -> Network:
        """A copy of the network with room for new classes, which is what will be trained."""
        student = copy.deepcopy(self.network)
        # The layers that torch draws itself take no generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number("init"))
            student.grow(classes)
        self.settings.engine.placed(student)
        return student

    def _teacher(self) -> Network:
        teacher = copy.deepcopy(self.network).eval()
        return teacher.requires_grad_(False)

    def _occasion(self, task: Task, old: tuple[int, ...], network: Network) -> Occasion:
        exemplars = self.memory.exemplars() if len(self.memory) else None
        return Occasion(task, old, exemplars, lambda x: self._features(network, x))

    def _rehearsed(self, task: Task, seeds: Seeds) -> Split | None:
        """What is seen of the old classes; in a stream of its own the new ones are there too."""
        if len(self.memory) == 0:
            return None
        if self.method.streams == "merged":
            return self.memory.exemplars()
        drawn = self.memory.rehearsed(task.train, len(task.classes), seeds.generator("memory"))
        return drawn if len(drawn) else None

    def _active(self, old: tuple[int, ...], rehearsed: Split | None) -> dict[str, Term]:
        """The terms that have a part in this task: those with a batch, and a teacher if need be."""
        streams = {"merged"} if self.method.streams == "merged" else {"new"}
        if rehearsed is not None and self.method.streams == "split":
            streams.add("exemplars")
        return {
            slot: term
            for slot, term in self.terms.items()
            if streams & set(term.streams) and (old or not term.needs_teacher)
        }

    def _train(self, job: Job, images: Sources, watch: Watch, saved: State | None) -> Position:
        """Go through all phases, or through those that ``saved`` leaves to be done."""
        position = Position() if saved is None else position_of(saved)
        phases = self.method.increment if job.old else self.method.base
        for phase in phases[position.phase :]:
            feed = self._feed(images, phase, job.seeds.at(phase.name))
            loop = Loop(self.settings.engine, job, phase, feed)
            if saved is not None:
                loop.load(saved)
                saved = None
            loop.run(position, watch)
        return position

    def _feed(self, images: Sources, phase: Phase, seeds: Seeds) -> Feed:
        """The batches of a phase, by the method's streams."""
        new, rehearsed = images
        if self.method.streams == "merged" or rehearsed is None:
            stream: Stream = "merged" if self.method.streams == "merged" else "new"
            together = new if rehearsed is None else join_splits([new, rehearsed])
            batches = self._batches(together, phase, seeds.at(stream))
            return Feed(
                len(batches),
                lambda epoch, skip: ({stream: b} for b in batches.epoch(epoch, skip=skip)),
            )
        fresh = self._batches(new, phase, seeds.at("new"))
        exemplars = self._batches(rehearsed, phase, seeds.at("exemplars"))
        return Feed(
            len(fresh),
            lambda epoch, skip: (
                {"new": n, "exemplars": e} for n, e in pairs(fresh, exemplars, epoch, skip=skip)
            ),
        )

    def _batches(self, images: Split, phase: Phase, seeds: Seeds) -> Batches:
        settings = self.settings
        size, share = phase.schedule.batch_size, settings.engine.share
        return Batches(images, size, settings.augment, seeds, share, workers=settings.workers)

    def _keep(self, task: Task, student: Network, seeds: Seeds, after: Occasion) -> None:
        """Take over what was trained, with exemplars and what terms keep of the task."""
        herded = None
        if self.memory.selection != "random":
            herded = after.features(task.train).cpu()
        self.memory.learn(task.train, len(task.classes), seeds.generator("memory"), herded)
        for term in self.terms.values():
            term.end(after)
        self.network = student
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


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
