"""The live display of a sweep, on stderr."""

import time
from collections import Counter

import rich.progress as bars
from rich.console import Console

from densekd.cli import output
from densekd.cli.progress import Bars, Display
from densekd.cli.signals import Interrupts
from densekd.jobs.events import JobDone, JobEvent, JobFailed, JobProgress, JobStopped, JobWarning
from densekd.runs.record import read_result
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.sweep import SweepObserver, SweepRecord


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
        """Show what is new. A warning that several jobs give is shown once."""
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
            return "stopped and saved"
        measure = self.record.sweep.experiment.measure
        value = (read_result(job.folder) or {}).get(measure)
        reached = "" if value is None else f" with {output.percent(value)} %"
        return f"finished{reached}, {output.duration(self.record.entry(job)['seconds'])}"

    def counts(self) -> list[str]:
        """How many jobs are finished, failed, running and waiting, and the time left."""
        states = Counter(self.record.entry(job)["state"] for job in self.record.sweep.jobs)
        words = [f"{states['finished']} of {states.total()} finished"]
        words += [f"{states[s]} {s}" for s in ("failed", "running", "waiting") if states[s]]
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
        """The answer to a signal."""
        return "Stopping all runs after their current batch; press Ctrl-C to quit at once."
