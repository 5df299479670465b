"""The training of a model's backbone: network, method and early stopping."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from densekd.files import read_sealed_json, write_sealed_json
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Term
from densekd.model.frozen.head import LinearHead
from densekd.nn.classifier import LinearClassifier
from densekd.nn.network import Backbone, Features, Network
from densekd.training.callbacks import Callback, TrainingProgress
from densekd.training.checkpoint import State, load_state, save_state

Stages = Literal["last", "all"]

# The name of the only phase.
FINETUNING = "fine-tuning"
# Chosen on photos that were neither trained on nor tested on.
_LR, _BATCH = 3e-4, 16
# The head's learning rate, relative to the last third of the backbone: its weights are some 30
# times as long as the features.
_HEAD_RATE = 300.0
_EARLIER_RATE = 1 / 3  # the learning rate of a third of the backbone, relative to the next third
_PATIENCE = 2  # epochs without a lower loss
_VALIDATED = 8  # photos per batch of the validation


class UnitFeatures(nn.Module):
    """A backbone whose pooled features are scaled to length 1, as the heads need them."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        assert isinstance(backbone, nn.Module)
        self.inner, self.width = backbone, backbone.width

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, D]`` of length 1, and maps."""
        pooled, maps = self.inner(images)
        return Features(normalize(pooled, dim=1), maps)


def join_head(backbone: Backbone, head: LinearHead, sizes: Sequence[int]) -> Network:
    """Make a network of a copy of the backbone and a head; ``sizes`` has each task's classes."""
    classifier = LinearClassifier(backbone.width)
    parts = zip(head.weight.split(list(sizes)), head.bias.split(list(sizes)), strict=True)
    for weight, bias in parts:
        classifier.grow(len(weight))
        with torch.no_grad():
            classifier.blocks[-1].copy_(weight)
            classifier.biases[-1].copy_(bias)
    return Network(UnitFeatures(copy.deepcopy(backbone)), classifier)


def finetuning_method(network: Network, stages: Stages, epochs: int, lambda_base: float) -> Method:
    r"""Cross-entropy, and exact dense distillation from the network before fine-tuning.

    .. math:: L = CE(z(x)) + \lambda KL(x)

    Batch normalisation keeps its statistics: a few hundred photos would only make them worse.
    """
    terms: dict[str, Term] = {"labels": CrossEntropy(["merged"], "all")}
    if lambda_base:
        weight = RatioWeight(lambda_base, exponent=0.0)
        terms["kd"] = Distil(["merged"], DenseDistillation("every"), weight)
    schedule = Schedule(epochs, _LR, batch_size=_BATCH)
    rates = stage_rates(network, stages)
    phases = (Phase(FINETUNING, schedule, fixed_statistics=True, rates=rates),)
    return Method("finetune", "linear", terms, base=phases, increment=phases, streams="merged")


def stage_rates(network: Network, stages: Stages) -> dict[str, float]:
    """The learning-rate factor of each trained parameter, by name.

    The layers of the backbone, in their order, are divided into thirds, each with a lower rate than
    the next. With ``last``, only the last third is trained.
    """
    assert isinstance(network.backbone, nn.Module)
    layers = [
        (name, [key for key, _ in layer.named_parameters(recurse=False)])
        for name, layer in network.backbone.named_modules()
    ]
    layers = [(name, keys) for name, keys in layers if keys]
    rates = {f"classifier.{name}": _HEAD_RATE for name, _ in network.classifier.named_parameters()}
    for place, (name, keys) in enumerate(layers):
        earlier = 2 - 3 * place // len(layers)
        if stages == "all" or not earlier:
            rates |= {f"backbone.{name}.{key}": _EARLIER_RATE**earlier for key in keys}
    return rates


class EarlyStop(Callback):
    """Keeps the weights of the epoch with the lowest loss on validation photos.

    Training is over after two epochs without a lower loss. Losses and weights are saved, so that a
    resumed training ends with the same weights. Without photos, the last epoch is kept.

    Args:
        callback: receives progress, and can stop the training.
        network: the network being trained.
        images: validation photos, normalised, ``[n, 3, H, W]``.
        labels: of the photos, ``[n]``.
        folder: where to save losses and weights.
    """

    def __init__(
        self, callback: Callback, network: Network, images: Tensor, labels: Tensor, folder: Path
    ) -> None:
        self.callback, self.network = callback, network
        self.images, self.labels = images, labels
        self._file, self._best = folder / "validation.json", folder / "best"
        self.losses: list[float] = []  # after each epoch
        earlier = folder / "losses.json"  # from earlier versions, without a checksum
        if self._file.exists():
            self.losses = read_sealed_json(self._file)["losses"]
        elif earlier.exists():
            self.losses = json.loads(earlier.read_bytes())

    @property
    def over(self) -> bool:
        """Whether the loss has stopped falling."""
        return len(self.losses) - self.best_epoch >= _PATIENCE

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest loss, counted from 1; 0 before the first."""
        return self.losses.index(min(self.losses)) + 1 if self.losses else 0

    def report(self, report: TrainingProgress) -> None:
        """Pass on the report; after an epoch, compute the loss and save the best weights."""
        self.callback.report(report)
        if report.ends_epoch and len(self.labels):
            # An epoch that is repeated after an interruption is counted once.
            self.losses = [*self.losses[: report.epoch], self._loss()]
            if self.best_epoch == report.epoch + 1:
                save_state(self._best, State({}, self.network.state_dict()))
            write_sealed_json(self._file, {"losses": self.losses})

    def stop(self) -> bool:
        """Whether the loss has stopped falling, or the callback asks to stop."""
        return self.over or self.callback.stop()

    def restore_best(self, epochs: int) -> int:
        """Load the best weights into the network; returns the number of epochs they took."""
        if not self.losses:
            return epochs
        self.network.load_state_dict(load_state(self._best).tensors)
        return self.best_epoch

    @torch.no_grad()
    def _loss(self) -> float:
        logits = [self.network(part).logits for part in self.images.split(_VALIDATED)]
        return float(cross_entropy(torch.cat(logits).float(), self.labels))
