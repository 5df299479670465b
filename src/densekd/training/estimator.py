"""The scikit-learn interface of a learner: images and labels in, class names out."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from densekd.data.dataset import Images
from densekd.data.scenario import Task
from densekd.training.callbacks import Callback
from densekd.training.inputs import ImageInputs, Label, as_images, as_names, as_task
from densekd.training.settings import Settings


class EstimatorMixin(ABC):
    """Adds scikit-learn's methods to a learner.

    ``X`` is n images in any form that `densekd.training.inputs.as_images` takes, and ``y`` their
    labels, names or whole numbers. A class is named by the text of its label.
    """

    classes: tuple[str, ...]
    settings: Settings

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each learned task."""

    @abstractmethod
    def unfitted_copy(self) -> Self:
        """A learner with the same settings that has learned nothing."""

    @abstractmethod
    def learn(self, task: Task, *, callback: Callback | None = None) -> object:
        """Learn the next task."""

    @abstractmethod
    def scores(self, images: Images) -> Tensor:
        """Scores ``[n, classes]``, the highest for the predicted class."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The names of all classes, in the order of `predict_proba`'s columns."""
        return np.array(self.classes, dtype=np.str_)

    def fit(self, X: ImageInputs, y: Iterable[Label], *, callback: Callback | None = None) -> Self:
        """Forget everything and learn these classes; the learner is unchanged until it is done."""
        fresh = self.unfitted_copy()
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
        ranks = self._scores(X).argmax(1)
        return [self.classes[rank] for rank in ranks.tolist()]

    def predict_proba(self, X: ImageInputs) -> NDArray[np.float32]:
        """The softmax of the scores, ``[n, classes]``; not calibrated."""
        probabilities: NDArray[np.float32] = self._scores(X).softmax(1).cpu().numpy()
        return probabilities

    def score(self, X: ImageInputs, y: Iterable[Label]) -> float:
        """The accuracy on these images, from 0 to 1."""
        predicted = self.predict(X)
        names = as_names(y, len(predicted))
        if not names:
            raise ValueError("There is no image to test on.")
        return sum(a == b for a, b in zip(predicted, names, strict=True)) / len(names)

    def _scores(self, X: ImageInputs) -> Tensor:
        if not self.classes:
            raise ValueError("Nothing was learned yet; call fit first.")
        return self.scores(as_images(X, self.settings.image_size))
