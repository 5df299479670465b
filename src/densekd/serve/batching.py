"""Predictions for many clients at once: images that wait are predicted together."""

import math
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from densekd.data.decode import UnreadableImage, width_and_height
from densekd.model.frozen.backbone import BATCH
from densekd.model.frozen.unknown import REFUSED
from densekd.model.model import Model, Prediction
from densekd.model.pointer import revision

_LONGEST = 65_535  # pixels, as in a JPEG: Pillow needs memory for each row, however short
_LARGE = 16_000_000  # pixels: decoded one by one, since 64 million can need 1.4 GB


class UnavailableModel(ValueError):
    """The model can't be opened."""


class CurrentModel:
    """A model's current state; a new one counts from the moment in which it is committed.

    Args:
        folder: the model's folder.
        refused: the share of images of known classes that may be called unknown.
    """

    def __init__(self, folder: Path, refused: float = REFUSED) -> None:
        self.folder, self.refused = folder, refused
        self._lock = threading.Lock()
        self._opened: tuple[object, Model] | None = None

    def open(self) -> Model:
        """The state that is current now; raises `UnavailableModel` if it can't be opened."""
        with self._lock:
            try:
                found = revision(self.folder)
                if self._opened is None or self._opened[0] != found:
                    model = Model.open(self.folder)
                    model.refused = self.refused
                    model.prepare()
                    self._opened = found, model
            except (ValueError, OSError) as error:
                self._opened = None  # never answer from a state that was replaced or deleted
                raise UnavailableModel(str(error)) from error
            return self._opened[1]


class StepPrediction(NamedTuple):
    """A prediction, and the step of the model that made it."""

    step: int
    prediction: Prediction


class _Job(NamedTuple):
    content: bytes
    top: int
    answer: Future[StepPrediction]


class BatchPredictor:
    """Predicts images in threads, a core each, and takes together what waits.

    Nothing waits for a batch to fill: while one is computed, the next gathers.

    Args:
        model: the model that predicts.
        most_pixels: images with more are refused before they are decoded.
    """

    def __init__(self, model: CurrentModel, most_pixels: int) -> None:
        self.model, self.most_pixels = model, most_pixels
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed, self._large = False, threading.Lock()
        self._cores = torch.get_num_threads()
        self._threads = [threading.Thread(target=self._work) for _ in range(self._cores)]
        for thread in self._threads:
            thread.start()

    def submit(self, content: bytes, top: int) -> Future[StepPrediction]:
        """Predict the ``top`` likeliest classes of an image, given as the content of its file.

        The result raises `UnreadableImage` if it can't be read.
        """
        job = _Job(content, top, Future())
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Predict what still waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        torch.set_num_threads(self._cores)  # later threads get the number that was set last

    def _work(self) -> None:
        torch.set_num_threads(1)
        while jobs := self._take():
            # A client that has gone away needs no answer.
            self._answer([job for job in jobs if job.answer.set_running_or_notify_cancel()])

    def _take(self) -> list[_Job]:
        """This thread's share of what waits; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            share = math.ceil(len(self._waiting) / self._cores)
            return [self._waiting.popleft() for _ in range(min(share, BATCH))]

    def _answer(self, jobs: list[_Job]) -> None:
        try:
            model = self.model.open()
            read = [(job, self._crop(model, job)) for job in jobs]
            readable = [(job, pixels) for job, pixels in read if pixels is not None]
            if readable:
                top = max(job.top for job, _ in readable)
                found = model.predict(torch.stack([pixels for _, pixels in readable]), top)
                for (job, _), every in zip(readable, found, strict=True):
                    prediction = Prediction(every[: job.top], every.known)
                    job.answer.set_result(StepPrediction(model.step, prediction))
        except Exception as error:  # whatever it is: no client may wait for ever
            for job in jobs:
                if not job.answer.done():
                    job.answer.set_exception(error)

    def _crop(self, model: Model, job: _Job) -> Tensor | None:
        """The pixels of an image; if it can't be read, its answer says so."""
        try:
            width, height = width_and_height(job.content)
            if width * height > self.most_pixels or max(width, height) > _LONGEST:
                raise UnreadableImage(
                    f"it has {width} x {height} pixels, more than {self.most_pixels / 1e6:.0f} "
                    f"million or {_LONGEST} on a side"
                )
            with self._large if width * height > _LARGE else nullcontext():
                return model.crop(job.content)
        except Exception as error:
            job.answer.set_exception(error)
            return None
