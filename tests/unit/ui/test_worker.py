import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densekd.model.settings import TeachOptions
from densekd.training.callbacks import TrainingProgress
from densekd.ui.worker import UpdateEstimate, UpdateJob, UpdateProgress


def report(phase: str, epoch: int, batch: int) -> TrainingProgress:
    return TrainingProgress(0, phase, epoch, 2, batch, 4, 0.1, 100.0, {})


def test_the_time_left_follows_from_the_speed_since_the_first_report() -> None:
    now = iter([10.0, 12.0, 14.0])
    estimate, progress = UpdateEstimate(lambda: next(now)), UpdateProgress()
    estimate.phases = (("main", 2), ("finish", 2))
    estimate.tell(report("main", 0, 4), progress)  # one of four epochs: it was resumed
    assert progress == UpdateProgress("Learning, epoch 2 of 4", 0.25, None)
    estimate.tell(report("main", 1, 4), progress)
    assert progress == UpdateProgress("Learning, epoch 3 of 4", 0.5, 4.0)
    estimate.tell(report("finish", 0, 4), progress)
    assert progress == UpdateProgress("Learning, epoch 4 of 4", 0.75, 2.0)


@pytest.mark.slow
def test_an_update_that_is_killed_is_told_of(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        pixels = np.zeros((8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name / "1.png")
    ended: list[UpdateJob] = []
    options = TeachOptions(network="resnet8", epochs=100_000)
    job = UpdateJob(tmp_path / "model", tmp_path / "photos", options, ended.append)
    while job.running and job.progress.left is None:
        job.wait(0.05)
    assert job.progress.warnings  # of classes that can't be tested
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    assert ended == [job]
    assert job.update is None
    assert job.failure is not None
    assert "broke off" in job.failure


@pytest.mark.slow
def test_what_cannot_be_learned_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "photos" / "empty").mkdir(parents=True)
    ended: list[UpdateJob] = []
    job = UpdateJob(tmp_path / "model", tmp_path / "photos", TeachOptions(), ended.append)
    job.wait()
    assert job.failure is not None
    assert job.failure.startswith("What was dropped has no readable image")
    assert ended == [job]
