import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densekd.jobs.events import JobChannel, JobEvent, JobProgress, JobWarning
from densekd.model.options import TeachOptions
from densekd.model.request import Plan
from densekd.training.callbacks import TrainingProgress
from densekd.ui.worker import UpdateInput, UpdateJob, UpdateReporter


class Recorder(JobChannel):
    """Keeps what a job reports."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []

    def send(self, event: JobEvent) -> None:
        self.events.append(event)

    def stop(self) -> bool:
        return False


def report(phase: str, epoch: int, batch: int) -> TrainingProgress:
    return TrainingProgress(1, phase, epoch, 2, batch, 4, 0.1, 100.0, {})


def test_progress_is_reported_with_the_time_left() -> None:
    channel, phases = Recorder(), (("main", 2), ("finish", 2))
    reporter = UpdateReporter(channel)
    now = iter([10.0, 12.0, 14.0, 15.0])
    reporter.estimate.clock = lambda: next(now)
    ticks = iter([0.0, 1.0, 5.0])
    reporter.reading_estimate.clock = lambda: next(ticks)
    for done in (1, 2, 16):
        reporter.reading(done, 20)
    reporter.planned(Plan(1, 1, {}, {}, {}, 8, "resnet8", "fdkd", phases, None, resumed=True))
    reporter.report(report("main", 0, 4))
    reporter.report(report("main", 1, 4))
    reporter.report(report("finish", 0, 2))
    reporter.report(report("finish", 0, 4))
    reporter.doing("testing")
    assert channel.events == [
        JobProgress("Reading photo 16 of 20", 0.8, 4 * 5 / 15),
        JobProgress("Learning, epoch 1 of 4", 0.25, None),  # the first report, after a resume
        JobProgress("Learning, epoch 2 of 4", 0.5, 4.0),
        JobProgress("Learning, epoch 3 of 4", 0.625, None),
        JobProgress("Learning, epoch 3 of 4", 0.75, 2.0),
        JobProgress("Testing", None),
    ]


def test_warnings_name_photos_without_the_folder_that_they_were_put_in(tmp_path: Path) -> None:
    job = UpdateJob.__new__(UpdateJob)
    job.warnings, job._source = [], tmp_path
    job._receive(JobWarning(f"Left out '{tmp_path}/cat/1.png': not an image."))
    assert job.warnings == ["Left out 'cat/1.png': not an image."]


@pytest.mark.slow
def test_a_killed_update_is_reported(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        pixels = np.zeros((8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name / "1.png")
    ended: list[UpdateJob] = []
    options = TeachOptions(network="resnet8", epochs=100_000)
    job = UpdateJob(UpdateInput(tmp_path / "model", tmp_path / "photos", options), ended.append)
    while job.running and job.progress.left is None:
        job.wait(0.05)
    assert job.warnings  # about classes with too few images to test
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    assert ended == [job]
    assert job.update is None
    assert job.failure is not None
    assert "killed" in job.failure
    assert "model is unchanged" in job.failure


@pytest.mark.slow
def test_an_update_that_fails_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "photos" / "empty").mkdir(parents=True)
    ended: list[UpdateJob] = []
    task = UpdateInput(tmp_path / "model", tmp_path / "photos", TeachOptions())
    job = UpdateJob(task, ended.append)
    job.wait()
    assert job.failure is not None
    assert "what was dropped has no readable image" in job.failure
    assert ended == [job]
