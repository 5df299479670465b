"""A learner: a network, what it keeps of the past, and a method to learn the next task by."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.dataset import Images
from densekd.data.memory import EVERYTHING, ExemplarMemory
from densekd.data.scenario import Task
from densekd.methods.method import Method
from densekd.nn.heads import HEADS
from densekd.nn.network import Backbone, Network
from densekd.seeds import Seeds
from densekd.training.callbacks import Callback
from densekd.training.checkpoint import (
    Checkpoints,
    State,
    load_state,
    save_state,
    select_prefix,
)
from densekd.training.estimator import EstimatorMixin
from densekd.training.inference import (
    InferenceOutputs,
    class_means,
    cosines,
    extract_features,
    infer,
)
from densekd.training.inference import nearest_mean as nearest_mean
from densekd.training.loop import train_task
from densekd.training.phases import ExternalTeacher, TaskTraining
from densekd.training.settings import InferredAugment
from densekd.training.settings import Settings as Settings
from densekd.training.spec import (
    LearnerSpec,
    describe_augment,
    describe_spec,
    restore_augment,
    restore_spec,
)


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


class Learner(EstimatorMixin):
    """Learns one task at a time, and keeps what it learned before.

    Args:
        backbone: gives features: the name of a network, such as ``resnet32`` or ``hf:FOLDER``, or
            an ``nn.Module``. One that has a ``width`` returns `densekd.nn.network.Features`, any
            other a tensor ``[B, D]`` or ``[B, D, H, W]``. It is not trained itself, a copy is.
        method: how to learn, or the name of it. The learner works with a copy of its terms.
        memory: keeps exemplars; or how many of each class one is to keep.
        settings: what does not depend on the method; without them images are normalised and
            varied as the first ones suggest.
        epochs: of the base task, for a method that is named; later tasks have fewer or more in
            proportion.
    """

    def __init__(
        self,
        backbone: Backbone | nn.Module | str = "resnet32",
        method: Method | str = "rdkd",
        memory: ExemplarMemory | int = 20,
        settings: Settings | None = None,
        *,
        epochs: int | None = None,
    ) -> None:
        given = Settings() if settings is None else settings
        self.spec = LearnerSpec(backbone, method, memory, given, epochs)
        self.method, self.settings = self.spec.make_method(), given
        self.classes: tuple[str, ...] = ()
        self.memory = self.spec.make_memory()
        if self.method.keeps == "everything":
            self.memory = ExemplarMemory(EVERYTHING)
        # Terms learn, such as the adaptive weight its class vectors: each learner has its own.
        self.terms = copy.deepcopy(dict(self.method.terms))
        made = self.spec.make_backbone()
        self.network = Network(made, HEADS[self.method.head](made.width))
        given.engine.placed(self.network)
        given.augment.to(given.engine.device)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task learned."""
        return self.network.classifier.sizes

    def learn(
        self,
        task: Task,
        *,
        callback: Callback | None = None,
        checkpoints: Checkpoints | None = None,
        external_teacher: ExternalTeacher | None = None,
    ) -> Learned:
        """Learn the next task.

        Until it is learned, the learner is what it was. If learning is interrupted and begun
        again with the same checkpoints, it ends with the same weights, bit for bit.

        Args:
            task: new classes, whose labels are the next ranks.
            callback: whom to tell how far it is.
            checkpoints: where to save how far it is. When the task is learned they hold its
                trained network, and learning it again from there takes no time.
            external_teacher: who teaches, in place of the network before the task, which is usual.
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
        self._infer_augment(task.train.images)
        training = TaskTraining(
            task, self.method, self.memory, self.settings, self.network, external_teacher
        )
        student = self._grow(task, training.seeds)
        notes = training.begin(self.terms)
        position = train_task(training, student, callback or Callback(), checkpoints)
        training.end(student)
        self.network, self.terms = student, training.terms
        self.classes += task.classes
        return Learned(position.seconds, position.images, notes)

    def logits(self, images: Images) -> Tensor:
        """The logits of images, ``[n, classes]``, by the network as it is."""
        return self.infer(images).logits

    def scores(self, images: Images, means: Tensor | None = None) -> Tensor:
        """What classes are predicted by, ``[n, classes]``: the larger, the likelier.

        The logits; or, by a method that predicts so, the cosines with the class means.

        Args:
            images: n images.
            means: what `means_to_predict_by` gave, so that it isn't computed for every call.
        """
        seen = self.infer(images)
        means = self.means_to_predict_by() if means is None else means
        return seen.logits if means is None else cosines(seen.features, means)

    def means_to_predict_by(self) -> Tensor | None:
        """The class means if the method predicts by them, and there are some."""
        return self.class_means() if self.method.predicts == "nearest-mean" else None

    def class_means(self) -> Tensor | None:
        """ICaRL's class means, unit vectors ``[classes, D]``, by the network as it is.

        The mean of the L2-normalised features of a class's exemplars and their mirror images,
        normalised again. None without exemplars.
        """
        if len(self.memory) == 0:
            return None
        return class_means(self.network, self.memory.exemplars(), self.settings)

    def infer(self, images: Images, *, flipped: bool = False) -> InferenceOutputs:
        """Logits and pooled features of images, or of their mirror images."""
        return infer(self.network, images, self.settings, flipped=flipped)

    def anew(self) -> "Learner":
        """A learner of the same parts that has learned nothing."""
        memory = ExemplarMemory(self.spec.make_memory().quota, self.memory.selection)
        return self._of(replace(self.spec, memory=memory))

    def save(self, folder: Path | str) -> None:
        """Write all that was learned, and what it is made of, to a folder, atomically."""
        state = self.state()
        made_of = {**describe_spec(self.spec), "used": describe_augment(self.settings.augment)}
        facts = {**state.facts, "parts": made_of}
        save_state(Path(folder) / "learner", State(facts, state.tensors))

    @classmethod
    def load(
        cls,
        folder: Path | str,
        backbone: Backbone | nn.Module | str | None = None,
        method: Method | str | None = None,
        memory: ExemplarMemory | int | None = None,
        settings: Settings | None = None,
    ) -> "Learner":
        """Read what `save` wrote.

        What the learner is made of was saved, but for a backbone, a method or an augmentation of
        one's own, which are given as they were.
        """
        state = load_state(Path(folder) / "learner")
        given = {"backbone": backbone, "method": method, "memory": memory, "settings": settings}
        made_of = state.facts.get("parts", {})
        learner = cls._of(restore_spec(made_of, given))
        learner.load_state(state)
        if settings is None:
            learner._augment_by(restore_augment(made_of["used"]))
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
        # The backbone that was given is left as it is.
        self.network = copy.deepcopy(self.network)
        for size in state.facts["sizes"]:
            self.network.grow(size)
        self.settings.engine.placed(self.network)
        self.network.load_state_dict(select_prefix(state.tensors, "network."))
        self.memory.load_state_dict(select_prefix(state.tensors, "memory."))
        for slot, term in self.terms.items():
            term.load_state_dict(select_prefix(state.tensors, f"term.{slot}."))
        self.classes = tuple(state.facts["classes"])

    @classmethod
    def _of(cls, parts: LearnerSpec) -> "Learner":
        four = parts.backbone, parts.method, parts.memory, parts.settings
        return cls(*four, epochs=parts.epochs)

    def _infer_augment(self, images: Images) -> None:
        """Augment as the first images suggest, if that is what the settings ask for."""
        given = self.spec.settings.augment
        if isinstance(given, InferredAugment) and not self.classes:
            self._augment_by(given.on(images, self.network.backbone))

    def _augment_by(self, augment: Augment) -> None:
        self.settings = replace(self.settings, augment=augment.to(self.settings.engine.device))

    def _grow(self, task: Task, seeds: Seeds) -> Network:
        """A copy of the network with room for new classes, which is what will be trained."""
        student = copy.deepcopy(self.network)
        # The layers that torch draws itself take no generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number("init"))
            student.grow(len(task.classes))
        self.settings.engine.placed(student)
        if self.method.imprints and self.sizes:
            features = extract_features(self.network, task.train, self.settings)
            labels = task.train.labels.to(features.device) - task.first
            student.classifier.imprint(features, labels, seeds.number("init"))
        return student
