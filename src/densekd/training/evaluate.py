"""Test a learner by its classifier and by the nearest class mean."""

from dataclasses import dataclass

import torch

from densekd.data.dataset import Split
from densekd.methods.method import Predictor
from densekd.metrics import Matrix, confusion_matrix
from densekd.training.inference import nearest_mean
from densekd.training.learner import Learner


@dataclass(frozen=True)
class Evaluation:
    """Confusion matrices over all learned classes."""

    head: Matrix  # of predictions by the largest logit
    nearest_mean: Matrix | None  # of predictions by the nearest class mean, if there are exemplars

    def by(self, predictor: Predictor) -> Matrix:
        """The matrix of a predictor; that of the head where there are no means."""
        means = self.nearest_mean if predictor == "nearest-mean" else None
        return self.head if means is None else means


def evaluate(learner: Learner, test: Split) -> Evaluation:
    """Test a learner on images of classes that it has learned; ranks share the images."""
    engine = learner.settings.engine
    own = test.take(engine.share.of(torch.arange(len(test))))
    outputs = learner.infer(own.images)
    predictions = [outputs.logits.argmax(1)]
    means = learner.class_means()
    if means is not None:
        predictions.append(nearest_mean(outputs.features, means))
    classes = len(learner.classes)
    counts = torch.stack(
        [torch.from_numpy(confusion_matrix(p.cpu(), own.labels, classes)) for p in predictions]
    )
    head, *nearest = engine.total(counts.to(engine.device)).cpu().numpy()
    return Evaluation(head, nearest[0] if nearest else None)
