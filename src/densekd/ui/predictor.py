"""Predicts what photos show, in a thread: the page shows each answer as soon as it is there."""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from densekd.data.decode import UnreadableImage, open_rgb
from densekd.model.model import Guess, Model
from densekd.ui.uploads import Upload, delete_uploads


class PhotoPrediction(NamedTuple):
    """A photo with its likeliest classes; there are none yet, or there is a problem."""

    photo: Upload
    guesses: list[Guess]
    problem: str = ""


class PhotoPredictor:
    """What a model says about the photos that were dropped last.

    Args:
        folder: the model's folder.
        top: the number of classes to give for each photo.
    """

    def __init__(self, folder: Path, top: int) -> None:
        self.folder, self.top = folder, top
        self.version = 0  # grows with every change
        self.predictions: list[PhotoPrediction] = []
        self._revision: object = None
        self._open = lru_cache(maxsize=1)(lambda revision: Model.open(folder))
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def find(self, photo: str) -> Upload | None:
        """The photo with this id, if it is here."""
        return next((x.photo for x in self.predictions if x.photo.id == photo), None)

    @property
    def busy(self) -> bool:
        """Whether photos are being predicted."""
        return self._running is not None and not self._running.done()

    def show(self, uploads: Iterable[Upload], revision: object) -> None:
        """Predict these photos, and forget those before; ``revision`` is that of the model."""
        delete_uploads(each.photo for each in self.predictions)
        self.predictions = [PhotoPrediction(upload, []) for upload in uploads]
        self._start(revision)

    def follow(self, revision: object) -> None:
        """Predict the photos again if the model has changed."""
        if revision != self._revision:
            self.predictions = list(self.predictions)
            self._start(revision)

    def close(self) -> None:
        """Stop predicting."""
        self._thread.shutdown(cancel_futures=True)

    def _start(self, revision: object) -> None:
        self._revision = revision
        self.version += 1
        self._running = self._thread.submit(self._predict, self.predictions, revision)

    def _predict(self, predictions: list[PhotoPrediction], revision: object) -> None:
        for i, each in enumerate(predictions):
            if predictions is not self.predictions:  # there are other photos or another model
                return
            predictions[i] = self._predict_photo(each.photo, revision)
            self.version += 1

    def _predict_photo(self, photo: Upload, revision: object) -> PhotoPrediction:
        try:
            model = self._open(revision)
            image = open_rgb(photo.file, model.image_size)
        except UnreadableImage as error:
            return PhotoPrediction(photo, [], f"Can't read this file: {error}.")
        except (ValueError, OSError) as error:
            return PhotoPrediction(photo, [], str(error))
        return PhotoPrediction(photo, model.predict([image], self.top)[0])
