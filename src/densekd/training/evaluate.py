"""Test a learner by its classifier and by the nearest class mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from densekd.data.dataset import Split
from densekd.data.scenario import Task
from densekd.data.stratify import first_of_each
from densekd.methods.method import Predictor
from densekd.metrics import Matrix, confusion_matrix
from densekd.nn.network import Network
from densekd.training.inference import cosines, extract_features, mean_directions
from densekd.training.learner import Learner
from densekd.training.own_metrics import StepOutputs

# Enough images for a mean, and few enough to take hardly any time compared with training.
_IMAGES_OF_A_MEAN = 20


@dataclass(frozen=True)
class Evaluation:
    """Confusion matrices over all learned classes."""

    head: Matrix  # of predictions by the largest logit
    nearest_mean: Matrix | None  # of predictions by the nearest class mean, if there are exemplars
    # Of predictions by the method's own predictor among only the classes of the image's task.
    within_task: Matrix | None = None
    # With ``keep_outputs``: the scores [n, classes] of the method's predictor, and metrics' input.
    scores: NDArray[np.float32] | None = None
    outputs: StepOutputs | None = None

    def by(self, predictor: Predictor) -> Matrix:
        """The matrix of a predictor; the head's if there are no class means."""
        means = self.nearest_mean if predictor == "nearest-mean" else None
        return self.head if means is None else means


def evaluate(learner: Learner, test: Split, *, keep_outputs: bool = False) -> Evaluation:
    """Test a learner on images of classes that it has learned; ranks share the images.

    With ``keep_outputs``, the result has scores and outputs of all images, on the CPU.
    """
    engine = learner.settings.engine
    index = engine.share.of(torch.arange(len(test)))
    own = test.take(index)
    outputs = learner.infer(own.images)
    scores = [outputs.logits]
    means = learner.class_means()
    if means is not None:
        scores.append(cosines(outputs.features, means))
    counts = [_counts(each, own.labels, len(learner.classes)) for each in scores]
    by_mean = learner.method.predicts == "nearest-mean"
    chosen = scores[-1 if by_mean else 0]
    within = restrict_to_task(chosen, own.labels, learner.sizes)
    counts.append(_counts(within, own.labels, len(learner.classes)))
    total = engine.total(torch.stack(counts).to(engine.device))
    head, *nearest, within_task = total.cpu().numpy()
    evaluation = Evaluation(head, nearest[0] if nearest else None, within_task)
    if not keep_outputs:
        return evaluation
    parts = (outputs.logits, chosen, outputs.features)
    logits, all_scores, features = (engine.gather(part, index, len(test)) for part in parts)
    labels, sizes, predicted = test.labels.cpu(), learner.sizes, all_scores.argmax(1)
    kept = StepOutputs(
        logits, labels, predicted, features, sizes, learner.classes, step=len(sizes) - 1
    )
    return replace(evaluation, scores=all_scores.numpy(), outputs=kept)


def restrict_to_task(scores: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """Set the scores ``[n, classes]`` of classes outside the image's own task to minus infinity."""
    tasks = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    others = tasks[labels][:, None] != tasks
    return scores.masked_fill(others.to(scores.device), -torch.inf)


def forward_transfer(learner: Learner, untrained: Network, task: Task) -> float:
    """How much better the features tell a new task's classes apart than those of random weights.

    The accuracy on the task's test images by the nearest mean of unit features, with the learner's
    network before it learns the task, minus that with the ``untrained`` network. The means are over
    the first images of each class. NaN without test images, and for a task of one class, where any
    features have an accuracy of 1.
    """
    if len(task.test) == 0 or len(task.classes) == 1:
        return math.nan
    first = Split(task.train.images, task.train.labels - task.first)
    known = first_of_each(first, _IMAGES_OF_A_MEAN)
    engine = learner.settings.engine
    test = task.test.take(engine.share.of(torch.arange(len(task.test))))
    right = []
    for network in (learner.network, untrained):
        features = normalize(extract_features(network, known, learner.settings), dim=1)
        means = mean_directions(features, known.labels, len(task.classes))
        tested = extract_features(network, test, learner.settings)
        predicted = cosines(tested, means).argmax(1).cpu() + task.first
        right.append(int((predicted == test.labels).sum()))
    trained, random = engine.total(torch.tensor(right, device=engine.device)).tolist()
    return float(trained - random) / len(task.test)


def _counts(scores: Tensor, labels: Tensor, classes: int) -> Tensor:
    return torch.from_numpy(confusion_matrix(scores.argmax(1).cpu(), labels, classes))
