"""Predicts the classes of photos; the page shows each prediction as soon as it is there."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from densekd.data.decode import UnreadableImage, open_rgb
from densekd.model.model import Prediction
from densekd.ui.follower import ModelFollower, problem_of
from densekd.ui.uploads import Upload, delete_uploads


class PhotoPrediction(NamedTuple):
    """A photo and its prediction; without one, there is a problem, or it isn't computed yet."""

    photo: Upload
    prediction: Prediction | None = None
    problem: str = ""


class PhotoPredictor(ModelFollower):
    """Predicts the classes of the photos that were dropped last.

    Args:
        folder: the model's folder.
        top: the number of classes to give for each photo.
    """

    def __init__(self, folder: Path, top: int) -> None:
        super().__init__(folder)
        self.top = top
        self.predictions: list[PhotoPrediction] = []

    def find(self, photo: str) -> Upload | None:
        """The photo with this id, if it is here."""
        return next((x.photo for x in self.predictions if x.photo.id == photo), None)

    def show(self, uploads: Iterable[Upload], revision: object) -> None:
        """Predict these photos, and delete the previous ones; ``revision`` is the model's."""
        delete_uploads(each.photo for each in self.predictions)
        self.predictions = [PhotoPrediction(upload) for upload in uploads]
        self.start(revision)

    def _work(self, revision: object) -> None:
        predictions = self.predictions
        for i, each in enumerate(predictions):
            if predictions is not self.predictions:  # there are other photos by now
                return
            predictions[i] = self._predict(each.photo, revision)
            self.version += 1

    def _predict(self, photo: Upload, revision: object) -> PhotoPrediction:
        try:
            model = self._open(revision)
            image = open_rgb(photo.file, model.image_size)
            return PhotoPrediction(photo, model.predict([image], self.top)[0])
        except UnreadableImage as error:
            return PhotoPrediction(photo, problem=f"Can't read this file: {error}.")
        except Exception as error:
            return PhotoPrediction(photo, problem=problem_of(error))
