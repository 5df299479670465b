"""How long an update is trained: as suits its images, or as fits into a time."""

import logging
import time
from pathlib import Path

from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import read_toml
from densekd.files import write_atomically
from densekd.model.request import Request, images_shown
from densekd.model.settings import usual_epochs, with_epochs
from densekd.training.callbacks import Callback, Stopped, TrainingProgress

# How long batches are tried, and at most which share of a budget.
_SECONDS = 5.0
_SHARE = 0.05
_FEWEST_BATCHES = 3
# What is left of a budget for testing and saving.
_TRAINED = 0.9
# Beyond this, more of the usual epochs gain nothing.
_MOST = 4

logger = logging.getLogger(__name__)


def kept_schedule(pending: Path, request: Request, callback: Callback, began: float) -> Config:
    """The settings to train by: those that an interrupted update was begun with, or chosen now.

    Args:
        pending: the folder of the update.
        request: what is asked for.
        callback: may ask to stop.
        began: when the update began, by the monotonic clock.
    """
    file = pending / "config.toml"
    if file.exists():
        return resolve(read_toml(file))
    config = request.config
    if request.options.budget is not None:
        config = fitted(request, seconds_per_epoch(request, callback), began)
    write_atomically(file, as_toml(config))
    return config


def fitted(request: Request, epoch: float, began: float) -> Config:
    """The settings with as many epochs as fit into the budget.

    Args:
        request: what is asked for, with a budget.
        epoch: the seconds that one takes.
        began: when the update began, by the monotonic clock.
    """
    config, part, budget = request.config, request.part, request.options.budget
    assert budget is not None
    left = 60 * budget - (time.monotonic() - began)
    share = total_seconds(config, request, epoch) / getattr(config.training, part).epochs
    epochs = int(_TRAINED * left / share)
    if epochs < 1:
        logger.warning("Not even one epoch fits into %g minutes; one is trained.", budget)
    most = _MOST * usual_epochs(part, images_shown(request.lesson, config))
    return with_epochs(config, part, min(max(1, epochs), most))


def total_seconds(config: Config, request: Request, epoch: float) -> float:
    """What training takes, if an epoch of any phase takes as long as one of the first."""
    return epoch * sum(epochs for _, epochs in request.plan(config, None, resumed=False).phases)


def seconds_per_epoch(request: Request, callback: Callback) -> float:
    """What an epoch of the first phase takes, by trying a few batches of it.

    Raises:
        Stopped: when ``watch`` asked for it.
    """
    budget = request.options.budget
    trial = _Trial(callback, _SECONDS if budget is None else min(_SECONDS, _SHARE * 60 * budget))
    try:
        request.learner(request.config).learn(request.task, callback=trial)
    except Stopped:
        if trial.asked:
            raise
    return trial.batch_seconds * trial.batches


class _Trial(Callback):
    """Times batches from the second on, since the first has to warm up, and stops soon."""

    def __init__(self, callback: Callback, seconds: float) -> None:
        self.callback = callback
        self.seconds = seconds
        self.done = self.batches = 0
        self.began = self.last = 0.0
        self.asked = False

    @property
    def batch_seconds(self) -> float:
        """The mean of the batches that were timed."""
        return (self.last - self.began) / max(1, self.done - 1)

    def report(self, report: TrainingProgress) -> None:
        self.batches = report.batches

    def stop(self) -> bool:
        self.done += 1
        self.last = time.monotonic()
        if self.done == 1:
            self.began = self.last
        self.asked = self.callback.stop()
        enough = self.done >= _FEWEST_BATCHES and self.last - self.began >= self.seconds
        return self.asked or (enough and self.batches > 0)
