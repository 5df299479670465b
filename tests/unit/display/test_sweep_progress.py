"""What is said of a sweep, of which nothing is run here."""

import dataclasses
import io
import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from densekd.analysis.flatness import Noise
from densekd.config.schema import resolve
from densekd.display import sweep_progress
from densekd.display.interrupts import Interrupts
from densekd.files import write_sealed_json
from densekd.jobs.events import JobDone, JobEvent, JobFailed, JobProgress, JobStopped, JobWarning
from densekd.sweeps.experiment_file import Experiment
from densekd.sweeps.jobs import SweepJob, SweepPlan, plan
from densekd.sweeps.sweep import SweepRecord
from densekd.sweeps.work import JobReporter, make_finished
from densekd.training.callbacks import TrainingProgress

from support.tiny_learners import STEPS_OF_TWO


def swept(out: Path, scale: float | None = None, flatness: bool = False) -> SweepPlan:
    """Four runs with two bases."""
    experiment = Experiment(
        name="mine",
        title="Mine",
        about="Two seeds.",
        kind="runs",
        measure="average_incremental_accuracy",
        settings={},
        grid={"method.name": ("gkd", "rdkd"), "seed": (1, 2)},
        skip=(),
        rows="method.name",
        columns="seed",
        flatness=flatness,
        targets=(),
    )
    return plan(experiment, out, scale=scale)


def finish(job: SweepJob, average: float, *seconds: float) -> None:
    """Write what a run leaves."""
    job.folder.mkdir(parents=True)
    unknown = dict.fromkeys(
        f"{which}accuracy" for which in ("", "base_", "old_", "new_", "head_", "nme_")
    )
    step: dict[str, Any] = {**unknown, "classes_seen": 2, "classes": ["a"], "notes": {}}
    step["images_per_second"] = 1.0
    steps = [
        {**step, "number": i, "task_accuracies": [0.5] * (i + 1), "seconds": x}
        for i, x in enumerate(seconds or (0.0,))
    ]
    settings = {"method": {"name": "gkd"}, "data": {"source": "digits"}}
    result: dict[str, Any] = {"average_incremental_accuracy": average, "forgetting": None}
    result |= {"steps": steps, "config": settings}
    (job.folder / "result.json").write_text(json.dumps(result))


class Seen:
    """An observer for a file, and what it said."""

    def __init__(self, sweep: SweepPlan) -> None:
        self.record = SweepRecord(sweep, make_finished())
        self.console = Console(file=io.StringIO(), width=200)
        self.interrupts = Interrupts()
        self.lines = sweep_progress.SweepDisplay(self.console, self.record, self.interrupts)

    def text(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()


def test_what_becomes_of_each_run_is_a_line(tmp_path: Path) -> None:
    sweep = swept(tmp_path)
    seen = Seen(sweep)
    first, second, third, _ = sweep.jobs
    ends: list[tuple[SweepJob, JobEvent]] = [
        (first, JobWarning("Few images.")),
        (second, JobWarning("Few images.")),
        (second, JobFailed("no room.")),
        (third, JobStopped()),
        (first, JobDone()),
    ]
    for job in (first, second, third):
        seen.lines.job_started(job)
    finish(first, 0.6543, 60.0)
    for job, news in ends:
        seen.lines.job_event(job, news)
    assert seen.text().splitlines() == [
        "gkd seed=1: started",
        "gkd seed=2: started",
        "rdkd seed=1: started",
        "Warning: Few images. (gkd seed=1)",
        "gkd seed=2: failed: no room.",
        "rdkd seed=1: stopped and saved",
        "gkd seed=1: finished with 65.4 %, 0.0 s",
    ]


@pytest.mark.parametrize(
    ("measure", "told", "column"),
    [("accuracy", " with 40.0 %", "40.0"), ("seconds", "", "60"), ("forgetting", "", "-")],
)
def test_what_a_run_reached_is_in_the_unit_of_the_measure(
    measure: str, told: str, column: str, tmp_path: Path
) -> None:
    sweep = swept(tmp_path)
    job = sweep.jobs[0]
    finish(job, 0.6543, 60.0)
    result = json.loads((job.folder / "result.json").read_text())
    result["steps"][-1]["accuracy"] = 0.4
    (job.folder / "result.json").write_text(json.dumps({**result, "seconds": 60.0}))
    experiment = dataclasses.replace(sweep.experiment, measure=measure)
    seen = Seen(dataclasses.replace(sweep, experiment=experiment))
    assert seen.lines.outcome(job, JobDone()) == f"finished{told}, 0.0 s"
    assert shown(seen.record)[3].split() == ["gkd", "seed=1", "finished", column, "1.0"]


def test_what_a_run_says_cannot_control_the_terminal(tmp_path: Path) -> None:
    sweep = swept(tmp_path)
    seen = Seen(sweep)
    events: list[JobEvent] = [JobWarning("\x1b[2J"), JobFailed("\x1b]0;x\x07")]
    for job, news in zip(sweep.jobs, events, strict=False):
        seen.lines.job_started(job)
        seen.lines.job_event(job, news)
    seen.record.set(sweep.jobs[1], "failed", "\x1b]0;x\x07")
    text = seen.text() + "\n".join(shown(seen.record))
    assert "\x1b" not in text
    assert text.count(r"failed: \x1b]0;x\x07") == 2
    assert r"Warning: \x1b[2J" in text


def test_how_far_all_of_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = swept(tmp_path)
    finish(sweep.jobs[0], 0.5, 60.0)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    seen = Seen(sweep)
    job = sweep.jobs[1]
    seen.record.set(job, "running")
    seen.lines.job_started(job)
    # Half of it was done before, and another quarter in ten seconds: 2.25 runs are left.
    seen.lines.job_event(job, JobProgress("task 3/6", 0.5))
    assert seen.lines.counts() == ["1 of 4 finished", "1 running", "2 waiting"]
    now = 110.0
    seen.lines.job_event(job, JobProgress("task 4/6, epoch 1/2", 0.75))
    assert seen.lines.counts()[-1] == "about 1 min 30 s left"
    said = "1 of 4 finished, 1 running, 2 waiting, about 1 min 30 s left"
    assert seen.text().splitlines()[-1] == f"{said}; gkd seed=2 task 4/6, epoch 1/2"


def test_a_signal_stops_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen = Seen(swept(tmp_path))
    assert not seen.lines.stop()
    with seen.interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert seen.lines.stop()
    assert (
        capfd.readouterr().err
        == "Stopping all runs after their current batch; press Ctrl-C to quit at once.\n"
    )


def shown(record: SweepRecord) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    sweep_progress.show_outcome(record, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_end_states_the_time_against_that_of_separate_runs(tmp_path: Path) -> None:
    sweep = swept(tmp_path, scale=0.1)
    # Bases of 100 and 200 seconds; the last run isn't there.
    for job, seconds in zip(sweep.jobs, ((100, 20), (200, 20), (100, 40)), strict=False):
        finish(job, 0.5, *map(float, seconds))
    record = SweepRecord(sweep, make_finished())
    record.set(sweep.jobs[3], "failed", "no room.")
    assert sweep_progress.training_times(sweep) == {"together": 380.0, "apart": 480.0, "bases": 2}
    lines = shown(record)
    assert lines[3].split() == ["gkd", "seed=1", "finished", "50.0", "2.0"]
    assert lines[6].split() == ["rdkd", "seed=2", "failed", "-", "-"]
    assert lines[-5] == "mine at scale 0.1 of all epochs: 3 of 4 runs finished, 1 failed."
    assert lines[-4] == "rdkd seed=2 failed: no room."
    assert lines[-2].startswith(
        "Training took 6 min 20 s with 2 bases for 3 runs; with a base for each run it would have "
        "taken 8 min 0 s. The whole sweep took "
    )
    assert sweep_progress.as_json(record)["training"] == sweep_progress.training_times(sweep)


def test_a_run_whose_flatness_is_drawn_is_not_finished_without_it(tmp_path: Path) -> None:
    job = swept(tmp_path, flatness=True).jobs[0]
    finish(job, 0.5, 1.0)
    finished = make_finished()
    assert not finished(job)
    file, usual = job.folder / "flatness.json", asdict(Noise())
    losses = [[1.0] * 5] * len(usual["sigmas"])
    write_sealed_json(file, {**usual, "per_class": 10, "images": 9, "losses": losses})
    assert not finished(job), "measured by other settings than those of sweeps"
    write_sealed_json(file, {**usual, "per_class": None, "images": 9, "losses": losses})
    assert finished(job)


class Kept:
    """A line of which everything is kept."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, news: JobEvent) -> None:
        self.told.append(news)

    def stop(self) -> bool:
        return len(self.told) > 2


def test_a_run_tells_how_much_of_it_is_done() -> None:
    training = {"base": {"epochs": 4}, "increment": {"epochs": 2}}
    line = Kept()
    telling = JobReporter(resolve({"training": training}), line)
    telling.loading(1, 2)
    # 24 images in the base, and twice 12 with as many exemplars: 96, 48 and 48 to go through.
    telling.started(Path("runs"), STEPS_OF_TWO, 0)
    assert not telling.stop()
    telling.report(TrainingProgress(0, "train", 2, 4, 3, 6, 0.1, 1.0, {}))
    telling.training(1, ())
    telling.report(TrainingProgress(1, "train", 1, 2, 3, 6, 0.1, 1.0, {}))
    telling.shared_base(waiting=True)
    telling.started(Path("runs"), STEPS_OF_TWO, 3)
    assert line.told == [
        JobProgress("reading the data"),
        JobProgress("begins"),
        JobProgress("task 1/3, epoch 3/4", 60 / 192),
        JobProgress("task 2/3", 0.5, base_done=True),
        JobProgress("task 2/3, epoch 2/2", (96 + 36) / 192, base_done=True),
        JobProgress("waiting for its base"),
        JobProgress("begins", 1.0, base_done=True),
    ]
    assert telling.stop()
