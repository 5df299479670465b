"""A learner: a network that learns one task after another by a method, with exemplars."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.convert import ImageInputs, Label, as_images, as_labels, as_task
from densekd.data.dataset import Images, image_shape
from densekd.data.memory import EVERYTHING, ExemplarMemory
from densekd.data.scenario import Task
from densekd.files import expand_home
from densekd.methods.defaults import kind_by_size
from densekd.methods.method import DataKind, Method
from densekd.nn.adapter import BackboneAdapter, width_at
from densekd.nn.classifier import HEADS
from densekd.nn.network import Backbone, Network, load_weights
from densekd.parts import explain_errors
from densekd.seeds import Seeds
from densekd.training import checkpoint, inference
from densekd.training.callbacks import Callback
from densekd.training.checkpoint import Checkpoints, State, select_prefix
from densekd.training.loop import train_task
from densekd.training.method_change import check_successor, fits_term
from densekd.training.phases import ExternalTeacher, TaskTraining
from densekd.training.settings import (
    InferredAugment,
    LearnerSpec,
    augment_in_use,
    describe_augment,
    restore_parts,
)
from densekd.training.settings import Settings as Settings
from densekd.training.task_checks import check_tasks


@dataclass(frozen=True)
class Learned:
    """The cost of learning a task, and what its terms recorded."""

    seconds: float  # of training
    images: int  # trained on, counting repetitions, over all streams
    notes: Mapping[str, float]  # what terms recorded, such as lambda, by slot and name


class Learner:
    """Learns one task at a time without forgetting the earlier ones.

    It has scikit-learn's methods too: ``X`` is n images in any form that
    `densekd.data.convert.as_images` takes, and ``y`` their labels, names or whole numbers. A
    class is named by the text of its label.

    Args:
        backbone: the name of a network, such as ``resnet32`` or ``hf:FOLDER``, or an ``nn.Module``.
            A module with a ``width`` returns `densekd.nn.network.Features`, any other a tensor
            ``[B, D]`` or ``[B, D, H, W]``. A copy of it is trained.
        method: a method or its name. The learner uses a copy of its terms.
        memory: the exemplar memory, or how many exemplars to keep of each class.
        settings: seed, augmentation, device; by default the first images decide how images are
            normalised and augmented.
        epochs: of the base task, if ``method`` is a name; later tasks are scaled in proportion.

    Example:
        >>> from densekd import Learner, Scenario, load
        >>> learner = Learner("resnet8", "gkd", memory=5, epochs=1)
        >>> for task in Scenario.of(load("digits"), steps=1):
        ...     _ = learner.learn(task)
        >>> learner.sizes
        (5, 5)
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
        self.kind: DataKind = "small"  # until the first images come
        self.classes: tuple[str, ...] = ()
        self.memory = self.spec.make_memory()
        if self.method.keeps == "everything":
            self.memory = ExemplarMemory(EVERYTHING)
        if self.memory.quota.of(1):
            self.method.check_replay()
        # Terms keep state, such as class vectors of adaptive weights, so each learner has a copy.
        self.terms = copy.deepcopy(dict(self.method.terms))
        made = self.spec.make_backbone()
        self.network = Network(made, HEADS[self.method.head](made.width))
        given.engine.place(self.network)
        given.augment.to(given.engine.device)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each learned task."""
        return self.network.classifier.sizes

    @explain_errors(but=Callback)
    def learn(
        self,
        task: Task,
        *,
        callback: Callback | None = None,
        checkpoints: Checkpoints | None = None,
        external_teacher: ExternalTeacher | None = None,
    ) -> Learned:
        """Learn the next task; until that is done, the learner keeps what it learned before.

        An interrupted call, repeated with the same checkpoints, gives the same weights bit for bit.

        Args:
            task: new classes, whose labels continue those of the learned ones.
            callback: receives progress, and may stop the training.
            checkpoints: where to save progress. Afterwards they hold the trained network, so that
                repeating the call takes no time.
            external_teacher: the teacher, instead of the network before the task.

        Raises:
            ValueError: the labels don't continue, or the task can't be learned; see `check_tasks`.
            Stopped: ``callback`` asked to stop; progress is saved.
            Diverged: a loss or a weight is no longer finite.
        """
        self._check(task)
        if not self.classes:  # the first images decide lambda, augmentation and width
            images, backbone = task.train.images, self.network.backbone
            augment, shape = self.spec.settings.augment, image_shape(images)
            self._set_kind(kind_by_size(min(shape)))
            if isinstance(augment, InferredAugment):
                self._set_augment(augment.on(images, backbone))
            if not isinstance(self.spec.backbone, str):
                self._set_width(width_at(backbone, shape))
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
        """The logits of images, ``[n, classes]``."""
        return self.infer(images).logits

    def scores(self, images: Images, means: Tensor | None = None) -> Tensor:
        """Scores ``[n, classes]``, the highest for the predicted class.

        They are the logits, or the cosines with the class means if the method predicts by those.
        Give the ``means``, from `prediction_means`, to avoid computing them in every call.
        """
        outputs = self.infer(images)
        means = self.prediction_means() if means is None else means
        return outputs.logits if means is None else inference.cosines(outputs.features, means)

    def prediction_means(self) -> Tensor | None:
        """The class means; None if the method predicts by the logits or has no exemplars."""
        return self.class_means() if self.method.predicts == "nearest-mean" else None

    def class_means(self) -> Tensor | None:
        """ICaRL's class means, unit vectors ``[classes, D]``; None without exemplars."""
        if len(self.memory) == 0:
            return None
        return inference.class_means(self.network, self.memory.exemplars(), self.settings)

    def infer(self, images: Images) -> inference.InferenceOutputs:
        """Logits and pooled features of images."""
        return inference.infer(self.network, images, self.settings)

    def in_float32(self) -> "Learner":
        """The same learner computing in 32 bits, so that predictions don't depend on the device."""
        other = copy.copy(self)
        other.settings = replace(self.settings, engine=self.settings.engine.in_float32())
        return other

    @property
    def classes_(self) -> NDArray[Any]:
        """The names of all classes, in the order of `predict_proba`'s columns."""
        return np.array(self.classes, dtype=np.str_)

    def fit(self, X: ImageInputs, y: Iterable[Label], *, callback: Callback | None = None) -> Self:
        """Forget everything and learn these classes; until that is done, nothing changes."""
        memory = ExemplarMemory(self.spec.make_memory().quota, self.memory.selection)
        fresh = Learner(**{**vars(self.spec), "memory": memory})
        fresh.partial_fit(X, y, callback=callback)
        vars(self).update(vars(fresh))
        return self

    def partial_fit(
        self, X: ImageInputs, y: Iterable[Label], *, callback: Callback | None = None
    ) -> Self:
        """Learn one more task; raises ValueError if a class is already known."""
        images = as_images(X, self.settings.image_size)
        self.learn(as_task(images, y, self.classes, len(self.sizes)), callback=callback)
        return self

    def predict(self, X: ImageInputs) -> list[str]:
        """The name of the most likely class of each image."""
        return [self.classes[rank] for rank in self._scores(X).argmax(1).tolist()]

    def predict_proba(self, X: ImageInputs) -> NDArray[np.float32]:
        """The softmax of the scores, ``[n, classes]``; not calibrated."""
        return np.asarray(self._scores(X).softmax(1).cpu())

    def score(self, X: ImageInputs, y: Iterable[Label]) -> float:
        """The accuracy on these images, from 0 to 1."""
        predicted = self.predict(X)
        names = [str(label) for label in as_labels(y, len(predicted))]
        if not names:
            raise ValueError("There is no image to test on.")
        return sum(a == b for a, b in zip(predicted, names, strict=True)) / len(names)

    def save(self, folder: Path | str) -> None:
        """Write the learner to a folder, atomically."""
        state = self.state()
        made_of = {**self.spec.describe(), "used": describe_augment(self.settings.augment)}
        facts = {**state.facts, "parts": {**made_of, "kind": self.kind}}
        checkpoint.save_state(expand_home(folder) / "learner", State(facts, state.tensors))

    @classmethod
    def load(
        cls,
        folder: Path | str,
        backbone: Backbone | nn.Module | str | None = None,
        method: Method | str | None = None,
        memory: ExemplarMemory | int | None = None,
        settings: Settings | None = None,
    ) -> "Learner":
        """Load a learner that `save` wrote.

        A backbone, method or augmentation that was given as an object can't be saved: pass it
        again. What is passed replaces what was saved. For another method, see `load_state`.
        """
        folder = expand_home(folder)
        state = checkpoint.load_state(folder / "learner")
        given = {"backbone": backbone, "method": method, "memory": memory, "settings": settings}
        made_of = state.facts.get("parts", {})
        with checkpoint.sound_content(folder):
            learner = cls(**restore_parts(made_of, given))
            learner._set_kind(made_of.get("kind", learner.kind))
            learner.load_state(state, change_method=method is not None)
            learner._set_augment(augment_in_use(learner.settings.augment, made_of, settings))
        return learner

    def state(self) -> State:
        """Everything learned: class names, weights, exemplars, the state of the terms."""
        parts = {
            "network": self.network.state_dict(),
            "memory": self.memory.state_dict(),
            **{f"term.{slot}": term.state_dict() for slot, term in self.terms.items()},
        }
        tensors = {f"{part}.{k}": x for part, state in parts.items() for k, x in state.items()}
        facts = {
            **{name: getattr(self.method, name) for name in ("head", "keeps", "predicts")},
            "method": self.method.name,
            "classes": list(self.classes),
            "sizes": self.sizes,
            "terms": {slot: term.state_kind for slot, term in self.terms.items()},
        }
        return State(facts, tensors)

    def load_state(self, state: State, *, change_method: bool = False) -> None:
        """Restore what `state` gave; the learner must not have learned anything yet.

        With ``change_method``, the state may be of another method. A term then takes over the state
        of the term in the same slot if both keep the same kind, else it starts afresh; exemplars
        beyond the quota are dropped.

        Raises:
            ValueError: the state is of a method or backbone that this learner can't go on from.
        """
        if self.classes:
            raise ValueError("This learner has learned something; load into a new one.")
        check_successor(self.method, state.facts, change_method=change_method)
        # Don't change the module that the user gave.
        self.network = copy.deepcopy(self.network)
        if state.facts["sizes"]:
            self._set_width(state.tensors["network.classifier.blocks.0"].shape[1])
        for size in state.facts["sizes"]:
            self.network.grow(size)
        self.settings.engine.place(self.network)
        load_weights(self.network.eval(), select_prefix(state.tensors, "network."))
        self.memory.load_state_dict(select_prefix(state.tensors, "memory."))
        if change_method:
            self.memory.shrink()
        for slot, term in self.terms.items():
            if not change_method or fits_term(slot, term, self.method, state.facts):
                term.load_state_dict(select_prefix(state.tensors, f"term.{slot}."))
        self.classes = tuple(state.facts["classes"])

    def _scores(self, X: ImageInputs) -> Tensor:
        if not self.classes:
            raise ValueError("Nothing was learned yet; call fit first.")
        return self.in_float32().scores(as_images(X, self.settings.image_size))

    def _check(self, task: Task) -> None:
        if task.first != len(self.classes):
            raise ValueError(
                f"Task {task.number} begins with class {task.first}, "
                f"but {len(self.classes)} classes were learned."
            )
        check_tasks([task], self.method, self.memory)

    def _set_kind(self, kind: DataKind) -> None:
        """Set the kind of data, which decides lambda if the method was given by name."""
        self.kind = kind
        if isinstance(self.spec.method, str):
            self.method = self.spec.make_method(kind)
            self.terms = copy.deepcopy(dict(self.method.terms))

    def _set_augment(self, augment: Augment) -> None:
        self.settings = replace(self.settings, augment=augment.to(self.settings.engine.device))

    def _set_width(self, width: int) -> None:
        """Set the number of features that a custom module has for the images in use."""
        backbone = self.network.backbone
        if isinstance(backbone, BackboneAdapter) and backbone.width != width:
            backbone.width = width
            self.network = Network(backbone, HEADS[self.method.head](width))
            self.settings.engine.place(self.network)

    def _grow(self, task: Task, seeds: Seeds) -> Network:
        """A copy of the network with outputs for the new classes: the network to train."""
        student = copy.deepcopy(self.network)
        # torch initialises layers from its global generator, so seed that for a moment.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number("init"))
            student.grow(len(task.classes))
        self.settings.engine.place(student)
        if self.method.imprints and self.sizes:
            features = inference.extract_features(self.network, task.train, self.settings)
            labels = task.train.labels.to(features.device) - task.first
            student.classifier.imprint(features, labels, seeds.number("init"))
        return student
