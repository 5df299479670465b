"""What a learner gets right, by its classifier and by the nearest class mean."""

from dataclasses import dataclass

import torch

from densekd.data.dataset import Split
from densekd.methods.method import Predictor
from densekd.metrics import Matrix, confusion_matrix
from densekd.training.learner import Learner, nearest_mean


@dataclass(frozen=True)
class Evaluation:
    """Confusion matrices over all classes seen.

    Args:
        head: with the argmax of the logits.
        nearest_mean: with the nearest mean of the exemplars; None without exemplars.
    """

    head: Matrix
    nearest_mean: Matrix | None

    def by(self, predictor: Predictor) -> Matrix:
        """The matrix that a method is judged by; by the head where there are no means."""
        means = self.nearest_mean if predictor == "nearest-mean" else None
        return self.head if means is None else means


def evaluate(learner: Learner, test: Split) -> Evaluation:
    """Test a learner on images of classes that it has learned; each rank takes its share."""
    engine = learner.settings.engine
    mine = test.take(engine.share.of(torch.arange(len(test))))
    seen = learner.infer(mine.images)
    guesses = [seen.logits.argmax(1)]
    means = learner.class_means()
    if means is not None:
        guesses.append(nearest_mean(seen.features, means))
    classes = len(learner.classes)
    counts = torch.stack(
        [torch.from_numpy(confusion_matrix(g.cpu(), mine.labels, classes)) for g in guesses]
    )
    head, *nearest = engine.total(counts.to(engine.device)).cpu().numpy()
    return Evaluation(head, nearest[0] if nearest else None)
