"""What is shown of a sweep: its plan, its progress on stderr, and its outcome."""

import time
from collections import Counter
from typing import Any

import rich.progress as bars
from rich.console import Console

from densekd.display import output
from densekd.display.interrupts import Interrupts
from densekd.display.progress import Bars, Display
from densekd.jobs.events import JobDone, JobEvent, JobFailed, JobProgress, JobStopped, JobWarning
from densekd.reports.labels import impossible_lines, state_words
from densekd.reports.runs import AnyRun, ReportedRun, finished_run
from densekd.sweeps.experiment_file import label
from densekd.sweeps.jobs import SweepJob, SweepPlan
from densekd.sweeps.pick import cell_of
from densekd.sweeps.sweep import SweepObserver, SweepRecord, validation_of
from densekd.sweeps.work import make_finished


class SweepDisplay(Display, SweepObserver):
    """Shows a bar for each running job, below a line for each that has ended.

    Without bars, prints a line when a job starts, and every few seconds one about all of them.
    """

    def __init__(self, target: Console | Bars, record: SweepRecord, interrupts: Interrupts) -> None:
        super().__init__(target, interrupts)
        self.record = record
        self.running: dict[str, JobProgress] = {}
        self.tasks: dict[str, bars.TaskID] = {}
        self.warned: set[str] = set()
        self.since = time.monotonic()
        # The share of each job that was done before this call.
        self.before: dict[str, float] = {}

    def job_started(self, job: SweepJob) -> None:
        """Add a bar, or print a line."""
        self.running[job.label] = JobProgress("begins")
        label = output.safe(job.label)
        if self.bars is None:
            self.say(f"{label}: started")
        else:
            self.tasks[job.label] = self.bars.add_task(label, total=1.0, amount="starting")
        self.describe(" · ".join(self.counts()))

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """Show an event. A warning that several jobs give is shown once."""
        name = output.safe(job.label)
        if isinstance(event, JobWarning):
            if event.text not in self.warned:
                self.say(f"Warning: {event.text} ({name})")
            self.warned.add(event.text)
        elif isinstance(event, JobProgress):
            if not self.before:  # leave out the time that the workers take to start
                self.since = time.monotonic()
            self.before.setdefault(job.label, event.share or 0.0)
            self.running[job.label] = event
            self.show_progress(job, event)
        else:
            self.running.pop(job.label, None)
            self.say(f"{name}: {self.outcome(job, event)}")
            if self.bars is not None:
                self.bars.remove_task(self.tasks.pop(job.label))
        self.describe(" · ".join(self.counts()))

    def show_progress(self, job: SweepJob, progress: JobProgress) -> None:
        """Move the bar, or print a line about all jobs if one is due."""
        if self.bars is None:
            doing = (f"{output.safe(label)} {p.doing}" for label, p in self.running.items())
            self.say_sometimes(f"{', '.join(self.counts())}; {'; '.join(doing)}")
            return
        left = "" if progress.left is None else f", {output.duration(progress.left)} left"
        amount = f"{progress.doing}{left}"
        self.bars.update(self.tasks[job.label], completed=progress.share, amount=amount)

    def outcome(self, job: SweepJob, event: JobDone | JobStopped | JobFailed) -> str:
        """How a job ended."""
        if isinstance(event, JobFailed):
            return f"failed: {event.reason}"
        if isinstance(event, JobStopped):
            entry = self.record.entry(job)
            return (
                f"pruned: {entry['reason']}" if entry["state"] == "pruned" else "stopped and saved"
            )
        measure, word = self.record.sweep.experiment.measure, ""
        value = None if measure == "seconds" else _measured(finished_run(job.folder), measure)
        if not self.record.is_pick(job):
            value, word = validation_of(job), " on validation images"
        reached = "" if value is None else f" with {output.percent(value)} %{word}"
        return f"finished{reached}, {output.duration(self.record.entry(job)['seconds'])}"

    def counts(self) -> list[str]:
        """How many jobs are finished, failed, running and waiting, and the time left."""
        states = Counter(self.record.entry(job)["state"] for job in self.record.sweep.jobs)
        words = state_words(states, str(states.total()))
        left = self.seconds_left(states)
        return words if left is None else [*words, f"about {output.duration(left)} left"]

    def seconds_left(self, states: Counter[str]) -> float | None:
        """The time until all is done if all jobs take equally long; None if too early to tell."""
        now = {label: progress.share or 0.0 for label, progress in self.running.items()}
        gained = sum(now.get(label, 1.0) - before for label, before in self.before.items())
        rest = states["waiting"] + sum(1 - share for share in now.values())
        elapsed = time.monotonic() - self.since
        return elapsed * rest / gained if gained > 0.02 else None

    @property
    def stopping_note(self) -> str:
        """The message shown after a signal."""
        return "Stopping all runs after their current batch; press Ctrl-C to quit at once."


def summary(sweep: SweepPlan, left: int) -> str:
    """How many runs and bases there are, in a line."""
    runs, bases = len(sweep.jobs), len({job.base_key for job in sweep.jobs})
    done = f" ({runs - left} already finished)" if left < runs else ""
    what = f"{output.count(runs, 'run')}{done}, {output.count(bases, _base(sweep))}"
    if (search := sweep.experiment.search) is not None:
        cells = len({repr(cell_of(p, search.parameters)) for p in sweep.experiment.points()})
        if search.kind == "optuna":
            what = f"{output.count(search.trials, 'trial')}, which Optuna chooses"
        what += f"; the best for each of {output.count(cells, 'cell')} of the table is picked"
        what += " by validation images"
        if search.tasks is not None:
            what += f" of the first {output.count(search.tasks, 'task')}, and then learns all"
    impossible = len(sweep.impossible)
    out = f"; {output.count(impossible, 'impossible run')} left out" if impossible else ""
    return f"{_title(sweep)}: {what}{out}."


def show_sweep_plan(sweep: SweepPlan, console: Console) -> None:
    """List the runs, the bases that they share, and their states."""
    done = {job.folder for job in filter(make_finished(), sweep.jobs)}
    console.print(summary(sweep, len(sweep.jobs) - len(done)), soft_wrap=True)
    numbers = {key: n for n, key in enumerate(dict.fromkeys(j.base_key for j in sweep.jobs), 1)}
    table = output.table("run", _base(sweep), "state", "folder")
    for job in sweep.jobs:
        begun = "started" if job.folder.exists() else "waiting"
        state = "finished" if job.folder in done else begun
        folder = output.safe(job.folder)
        table.add_row(output.safe(job.label), str(numbers[job.base_key]), state, folder)
    for each in sweep.impossible:
        table.add_row(output.safe(each.label), "-", "impossible", "-")
    console.print(table)
    for line in left_out(sweep):
        console.print(line, soft_wrap=True)


def left_out(sweep: SweepPlan) -> list[str]:
    """A line for each reason why runs are impossible, with these runs."""
    points = ((output.safe(each.label), each.reason) for each in sweep.impossible)
    return [output.escape_controls(line) for line in impossible_lines(points)]


def show_outcome(record: SweepRecord, console: Console) -> None:
    """Print each run's result and time, the picked values, and what failed."""
    sweep, measure = record.sweep, record.sweep.experiment.measure
    percents = measure != "seconds"
    searched = ("validation %",) if sweep.experiment.search is not None else ()
    numbers = (*searched, "%" if percents else measure, "minutes")
    table = output.table("run", "state", numbers=numbers)
    for job in sweep.jobs:
        run = finished_run(job.folder)
        value = _measured(run, measure) if record.is_pick(job) else None
        seconds = _measured(run, "seconds")
        took, minutes = ("-", "-") if seconds is None else (f"{seconds:.0f}", f"{seconds / 60:.1f}")
        reached = output.percent(value) if percents else took
        held = [output.percent(validation_of(job))] if searched else []
        state = record.entry(job)["state"]
        table.add_row(output.safe(job.label), state, *held, reached, minutes)
    console.print(table)
    if percents:
        console.print(f"%: {measure.replace('_', ' ')}. Minutes: training time, with the base.")
    for pick in record.picks:
        where, values = output.safe(label(pick.cell)), output.safe(label(pick.values))
        console.print(
            f"Picked for {where}: {values}, of {output.count(pick.trials, 'trial')}, with "
            f"{output.percent(pick.validation)} % on validation images.",
            soft_wrap=True,
        )
    for line in _outcome_lines(record):
        console.print(line, soft_wrap=True)


def _measured(run: AnyRun | None, measure: str) -> float | None:
    return None if run is None else run.measured(measure)


def as_json(record: SweepRecord) -> dict[str, Any]:
    """The record of a sweep, with its training times."""
    sweep = record.sweep
    names = {"experiment": sweep.experiment.name, "folder": str(sweep.folder)}
    return {**names, **record.content(), "training": training_times(sweep)}


def training_times(sweep: SweepPlan) -> dict[str, float]:
    """Training times of the finished runs.

    Returns:
        ``together``: the seconds that training took; ``apart``: the seconds it would have taken if
        each run had trained its own base; ``bases``: how many bases were trained.
    """
    apart, saved, bases = 0.0, 0.0, set()
    for job in sweep.jobs:
        run = finished_run(job.folder)
        if (seconds := _measured(run, "seconds")) is not None:
            apart += seconds
            if job.base_key in bases and isinstance(run, ReportedRun):
                saved += run.steps[0]["seconds"]
            bases.add(job.base_key)
    return {"together": apart - saved, "apart": apart, "bases": len(bases)}


def _outcome_lines(record: SweepRecord) -> list[str]:
    sweep = record.sweep
    states = Counter(record.entry(job)["state"] for job in sweep.jobs)
    ended = ", ".join(state_words(states, output.count(len(sweep.jobs), "run")))
    lines = [f"{_title(sweep)}: {ended}.", *left_out(sweep)]
    for job in sweep.jobs:
        if record.entry(job)["state"] == "failed":
            reason = output.escape_controls(record.entry(job)["reason"])
            lines.append(f"{output.safe(job.label)} failed: {reason}")
    if states["failed"]:
        traces = sweep.folder / "failures"
        logged = f" Unexpected errors are logged in {output.safe(traces)}."
        where = logged if traces.exists() else ""
        lines.append(f"Run the same command again to retry failed runs.{where}")
    if sweep.experiment.kind == "runs" and states["finished"]:
        times = training_times(sweep)
        lines.append(
            f"Training took {output.duration(times['together'])} with "
            f"{output.count(int(times['bases']), 'base')} for "
            f"{output.count(states['finished'], 'run')}; with a base for each run it would have "
            f"taken {output.duration(times['apart'])}. The whole sweep took "
            f"{output.duration(record.content()['seconds'])}."
        )
    lines.append(f"Sweep folder: {output.safe(sweep.folder)}")
    return lines


def _title(sweep: SweepPlan) -> str:
    scale = "" if sweep.scale is None else f" at scale {sweep.scale:g} of all epochs"
    return f"{output.safe(sweep.experiment.name)}{scale}"


def _base(sweep: SweepPlan) -> str:
    return "teacher" if sweep.experiment.kind == "compression" else "base"
