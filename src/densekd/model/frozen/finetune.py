"""Fine-tune a model's backbone on its kept images, with the model itself as the teacher."""

import copy
import itertools
import math
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from densekd.checks import check_choice
from densekd.config.settings_tree import digest
from densekd.data.augment import Augment
from densekd.data.dataset import FileImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Task
from densekd.data.stratify import held_out
from densekd.files import read_sealed_json, write_sealed_json
from densekd.model.frozen.backbone import BATCH, FrozenBackbone
from densekd.model.frozen.finetune_training import (
    FINETUNING,
    EarlyStop,
    Stages,
    UnitFeatures,
    finetuning_method,
    join_head,
)
from densekd.model.frozen.head import fit_head
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photos import Photos
from densekd.model.frozen.update import FrozenUpdate
from densekd.model.images import FEWEST_TO_TEST
from densekd.model.model import Model
from densekd.model.options import check_budget
from densekd.model.parallel import map_batches
from densekd.model.request import Plan, TeachObserver
from densekd.model.store import FROZEN, Edit, Store, Update, update_from_json
from densekd.model.trained.settings import seconds_per_epoch
from densekd.nn.network import Network
from densekd.training.callbacks import Callback, Stopped, stoppable
from densekd.training.checkpoint import Checkpoints
from densekd.training.loop import train_task
from densekd.training.phases import TaskTraining
from densekd.training.settings import Settings

_SEED = 0
# The share of the kept images, test images aside, that decides when to stop.
_VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class FinetuneOptions:
    """How to fine-tune. Don't rename the fields: their digest identifies a fine-tuning on disk."""

    stages: Stages = "last"  # which layers of the backbone to train: the last third, or all
    epochs: int = 6  # at most
    budget: float | None = None  # minutes for the whole update
    lambda_base: float = 5.0  # the weight of the distillation; 0 for none

    def __post_init__(self) -> None:
        check_choice("stages", self.stages, get_args(Stages))
        check_budget(self.budget)
        if self.epochs < 1 or not 0 <= self.lambda_base < math.inf:
            raise ValueError(
                "Fine-tuning needs at least 1 epoch and a finite lambda_base of at least 0, not "
                f"epochs={self.epochs} and lambda_base={self.lambda_base}."
            )


@dataclass(frozen=True)
class Finetuned:
    """The result of fine-tuning."""

    kept: bool  # whether accuracy on the held-out photos rose; if not, the model is unchanged
    update: Update  # with the accuracy before and after


def finetune_model(
    folder: Path,
    options: FinetuneOptions,
    observer: TeachObserver | None = None,
    began: float | None = None,
) -> Finetuned:
    """Train a model's backbone on the model's kept images; keep the result if accuracy rises.

    Like `densekd.model.teach.teach_model`, this changes nothing until it is finished, continues
    where it was interrupted and ends with the same bits, and does nothing if it was done before.
    The budget counts from ``began`` on the monotonic clock; by default from now.
    """
    store, observer = Store(folder), observer or TeachObserver()
    store.require_pointer()
    with store.locked():
        model, asked = _open(folder), digest(["finetune", asdict(options)])
        if model.facts["asked"] == asked:
            observer.finetuned_before()
            return Finetuned(True, model.entry.update)
        pending = store.pending_update(asked, model.step)
        return _Finetuning(store, model, options, asked, pending).carry_out(observer, began)


@dataclass(frozen=True)
class _Finetuning:
    store: Store
    model: FrozenModel
    options: FinetuneOptions
    asked: str  # the digest of the options
    pending: Path  # the folder for the unfinished work

    @cached_property
    def kept(self) -> Tensor:
        """The places of photos with a kept image: only their features can be recomputed."""
        return (self.model.photos.kept & (self.model.labels >= 0)).nonzero().flatten()

    @cached_property
    def splits(self) -> tuple[Tensor, Tensor]:
        """The places of the training images and of the validation images."""
        places = self.kept[~self.model.photos.test[self.kept]]
        chosen = held_out(self.model.labels[places].tolist(), _VALIDATION_SHARE, _SEED)
        return places[~chosen], places[chosen]

    @cached_property
    def settings(self) -> Settings:
        augment = Augment(*self.model.backbone.statistics, padding=0, crop="resized")
        return Settings(augment, _SEED, oversample_rare=True)

    @cached_property
    def teacher(self) -> Network:
        """The model, with a head fitted without test and validation photos."""
        model = self.model
        fitted = ~model.photos.test & (model.labels >= 0)
        fitted[self.splits[1]] = False
        features, labels = model.photos.features[fitted].float(), model.labels[fitted]
        network = join_head(
            model.backbone.backbone,
            fit_head(features, labels, len(model.classes)),
            learned_task_sizes(model),
        )
        self.settings.engine.place(network)
        return network

    def carry_out(self, observer: TeachObserver, began: float | None) -> Finetuned:
        """Train, recompute all features, fit the head, test; commit if accuracy rises."""
        started, rejected = time.monotonic(), self.pending / "rejected.json"
        if rejected.exists():
            observer.finetuned_before()
            return Finetuned(False, update_from_json(read_sealed_json(rejected, unsealed=True)))
        epochs = self._affordable_epochs(observer, started if began is None else began)
        checkpoints = Checkpoints(self.pending / "epochs")
        observer.planned(self._plan(epochs, resumed=checkpoints.newest() is not None))
        backbone, trained = self._trained(epochs, observer, checkpoints)
        photos = self._renewed(backbone, observer)
        observer.doing("fitting")
        update = FrozenUpdate(
            self.store,
            self.store.require_pointer().steps,
            self.model,
            backbone,
            self.model.classes,
            self.model.labels[self.kept],
            photos,
            self.asked,
            edit=Edit("fine-tuned on", (), int((~photos.test).sum())),
            finetuned=trained,
        ).commit(self.pending / "state", started, only_if=_rises)
        if not _rises(update):
            shutil.rmtree(self.pending)
            write_sealed_json(rejected, asdict(update))
        return Finetuned(_rises(update), update)

    def _affordable_epochs(self, observer: TeachObserver, began: float) -> int:
        """The epochs that fit into the budget, at least one."""
        if self.options.budget is None:
            return self.options.epochs
        file = self.pending / "budget.json"
        if not file.exists():
            observer.doing("measuring")
            student = copy.deepcopy(self.teacher)
            epoch = seconds_per_epoch(
                lambda trial: self._train(student, 1, trial, None), observer, self.options.budget
            )
            left = 60 * self.options.budget - (time.monotonic() - began)
            # Reserve the time of one epoch for recomputing all features.
            epochs = int(left / max(epoch, 1e-9)) - 1
            write_sealed_json(file, {"epochs": max(1, min(epochs, self.options.epochs))})
        return int(read_sealed_json(file, unsealed=True)["epochs"])

    def _plan(self, epochs: int, *, resumed: bool) -> Plan:
        model = self.model
        counts = Counter(model.classes[rank] for rank in model.labels[self.splits[0]].tolist())
        return Plan(
            self.store.require_pointer().steps,
            0,
            {},
            dict(counts),
            {},
            model.image_size,
            model.network,
            FROZEN,
            ((FINETUNING, epochs),),
            resumed=resumed,
        )

    def _trained(
        self, epochs: int, observer: TeachObserver, checkpoints: Checkpoints
    ) -> tuple[FrozenBackbone, int]:
        """The backbone of the best epoch, and the number of epochs until then."""
        student, places = copy.deepcopy(self.teacher), self.splits[1]
        crops = self.model.crops([self.model.photos.jpegs[place] for place in places.tolist()])
        device = self.settings.engine.device
        images = self.settings.augment.to(device).normalise(crops.to(device))
        labels = self.model.labels[places].to(device)
        early = EarlyStop(observer, student, images, labels, self.pending)
        if not early.over:
            try:
                self._train(student, epochs, early, checkpoints)
            except Stopped:
                if not early.over:
                    raise
        best = early.restore_best(epochs)
        assert isinstance(student.backbone, UnitFeatures)
        return FrozenBackbone(self.model.network, student.backbone.inner), best

    def _train(
        self, student: Network, epochs: int, callback: Callback, checkpoints: Checkpoints | None
    ) -> None:
        model, places = self.model, self.splits[0]
        jpegs = tuple(model.photos.jpegs[place] for place in places.tolist())
        images = Split(FileImages(jpegs, model.image_size), model.labels[places])
        task = Task(0, model.classes, 0, images, images.take(torch.arange(0)))
        options = self.options
        method = finetuning_method(student, options.stages, epochs, options.lambda_base)
        memory = ExemplarMemory(Quota(0))
        training = TaskTraining(task, method, memory, self.settings, self.teacher)
        training.begin(method.terms)
        train_task(training, student, callback, checkpoints)

    def _renewed(self, backbone: FrozenBackbone, observer: TeachObserver) -> Photos:
        """The photos with a kept image, and their features by the new ``backbone``."""
        photos, rows = self.model.photos.take(self.kept), list[Tensor]()
        progress = stoppable(observer.reading, observer)
        batches = [photos.jpegs[i : i + BATCH] for i in range(0, len(photos), BATCH)]
        for features in map_batches(lambda x: backbone.features(self.model.crops(x)), batches):
            rows += features
            progress(len(rows), len(photos))
        return replace(photos, features=torch.stack(rows).half())


def learned_task_sizes(model: FrozenModel) -> tuple[int, ...]:
    """The number of classes of each task, that is, of each step that added some."""
    steps = [model.facts["learned_in"][name] for name in model.classes]
    return tuple(len(list(own)) for _, own in itertools.groupby(steps))


def _open(folder: Path) -> FrozenModel:
    model = Model.open(folder)
    if not isinstance(model, FrozenModel):
        raise ValueError(
            f"The network of {folder} is trained at every update, so there is nothing to "
            "fine-tune; leave out --finetune."
        )
    kept = model.labels[model.photos.kept & ~model.photos.test & (model.labels >= 0)]
    missing = [name for rank, name in enumerate(model.classes) if rank not in kept]
    if missing:
        raise ValueError(
            f"{folder} keeps no image of {missing[0]!r} to train on; teach it more photos of that "
            "class with --known add."
        )
    if not model.tested.any():
        raise ValueError(
            f"{folder} has no photos to test on, so whether fine-tuning helps can't be measured; "
            f"teach it at least {FEWEST_TO_TEST} photos of a class."
        )
    return model


def _rises(update: Update) -> bool:
    """Whether more of the held-out photos are predicted right than before."""
    assert update.before is not None
    return (update.after.all or 0.0) > (update.before.all or 0.0)
