"""A learner with the manners of scikit-learn: images and labels in, names out."""

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
    """What can be done with images of any kind, `densekd.training.inputs.as_images` says which.

    A class is called by its label, or by the text of it if that is a number.
    """

    classes: tuple[str, ...]
    settings: Settings

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task learned."""

    @abstractmethod
    def anew(self) -> Self:
        """What is made of the same parts and has learned nothing."""

    @abstractmethod
    def learn(self, task: Task, *, callback: Callback | None = None) -> object:
        """Learn the next task."""

    @abstractmethod
    def scores(self, images: Images) -> Tensor:
        """What classes are predicted by, ``[n, classes]``: the larger, the likelier."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The names of all classes, in the order of `predict_proba`'s columns."""
        return np.array(self.classes, dtype=np.str_)

    def fit(self, X: ImageInputs, y: Iterable[Label], *, callback: Callback | None = None) -> Self:
        """Forget everything, and learn these classes from the start.

        Until they are learned, the learner is what it was.

        Args:
            X: n images.
            y: n labels, names or whole numbers.
            callback: whom to tell how far it is.
        """
        fresh = self.anew()
        fresh.partial_fit(X, y, callback=callback)
        vars(self).update(vars(fresh))
        return self

    def partial_fit(
        self, X: ImageInputs, y: Iterable[Label], *, callback: Callback | None = None
    ) -> Self:
        """Learn one more task: classes that are all new.

        Args:
            X: n images.
            y: n labels, names or whole numbers.
            callback: whom to tell how far it is.
        """
        images = as_images(X, self.settings.image_size)
        self.learn(as_task(images, y, self.classes, len(self.sizes)), callback=callback)
        return self

    def predict(self, X: ImageInputs) -> list[str]:
        """The names of the classes that the method finds most likely."""
        ranks = self._scores(X).argmax(1)
        return [self.classes[rank] for rank in ranks.tolist()]

    def predict_proba(self, X: ImageInputs) -> NDArray[np.float32]:
        """The softmax of what classes are predicted by, ``[n, classes]``; not calibrated."""
        probabilities: NDArray[np.float32] = self._scores(X).softmax(1).cpu().numpy()
        return probabilities

    def score(self, X: ImageInputs, y: Iterable[Label]) -> float:
        """The share of images whose class is predicted right."""
        guesses = self.predict(X)
        names = as_names(y, len(guesses))
        if not names:
            raise ValueError("There is no image to test on.")
        return sum(a == b for a, b in zip(guesses, names, strict=True)) / len(names)

    def _scores(self, X: ImageInputs) -> Tensor:
        if not self.classes:
            raise ValueError("Nothing was learned yet; call fit first.")
        return self.scores(as_images(X, self.settings.image_size))
