"""What is seen of a sweep while it goes on, on stderr."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import rich.progress as bars
from rich.console import Console

from densekd.cli import output
from densekd.cli.progress import Bars, Silent, Spoken
from densekd.cli.signals import Interrupts
from densekd.jobs.events import JobDone, JobEvent, JobFailed, JobProgress, JobStopped, JobWarning
from densekd.runs.record import read_result
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.record import SweepRecord
from densekd.sweeps.sweep import SweepObserver


@contextmanager
def observing(
    record: SweepRecord, interrupts: Interrupts, *, quiet: bool
) -> Iterator[SweepObserver]:
    """An observer that fits where stderr goes."""
    console = output.console(stderr=True)
    if quiet:
        yield SweepQuiet(interrupts)
    elif console.is_terminal:
        with Bars(console, width=24) as drawn:
            yield SweepScreen(drawn, record, interrupts)
    else:
        yield SweepLines(console, record, interrupts)


class SweepQuiet(Silent, SweepObserver):
    """Says nothing, but stops when it should."""


class SweepLines(Spoken, SweepObserver):
    """A line for each job that begins or ends, and now and then one about all, for a file."""

    def __init__(self, console: Console, record: SweepRecord, interrupts: Interrupts) -> None:
        super().__init__(console, interrupts)
        self.record = record
        self.pace = output.Pace()
        self.running: dict[str, JobProgress] = {}
        self.warned: set[str] = set()
        self.since = time.monotonic()
        # Of each job that went on in this call, the share that was done before it.
        self.before: dict[str, float] = {}

    def job_started(self, job: SweepJob) -> None:
        """Say that a job begins."""
        self.running[job.label] = JobProgress("begins")
        self.say(f"{output.safe(job.label)}: begins")

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """Say what is new; a warning only once, for many jobs may have it."""
        name = output.safe(job.label)
        if isinstance(event, JobWarning):
            if event.text not in self.warned:
                self.say(f"Warning: {event.text} ({name})")
            self.warned.add(event.text)
        elif isinstance(event, JobProgress):
            if not self.before:  # workers take a while to start, but only once
                self.since = time.monotonic()
            self.before.setdefault(job.label, event.share or 0.0)
            self.running[job.label] = event
            self.show(job, event)
        else:
            self.running.pop(job.label, None)
            self.say(f"{name}: {self.outcome(job, event)}")

    def show(self, job: SweepJob, progress: JobProgress) -> None:
        """Say how far all of it is, now and then."""
        if self.pace.due():
            doing = (f"{output.safe(label)} {p.doing}" for label, p in self.running.items())
            self.say(f"{', '.join(self.counts())}; {'; '.join(doing)}")

    def outcome(self, job: SweepJob, event: JobDone | JobStopped | JobFailed) -> str:
        """What became of a job."""
        if isinstance(event, JobFailed):
            return f"failed: {event.reason}"
        if isinstance(event, JobStopped):
            return "stopped and saved"
        measure = self.record.sweep.experiment.measure
        value = (read_result(job.folder) or {}).get(measure)
        reached = "" if value is None else f" with {output.percent(value)} %"
        return f"finished{reached}, {output.duration(self.record.entry(job)['seconds'])}"

    def counts(self) -> list[str]:
        """How many jobs are finished, failed, waiting, and when all will be."""
        states = Counter(self.record.entry(job)["state"] for job in self.record.sweep.jobs)
        words = [f"{states['finished']} of {states.total()} finished"]
        words += [f"{states[s]} {s}" for s in ("failed", "running", "waiting") if states[s]]
        left = self.left(states)
        return words if left is None else [*words, f"about {output.duration(left)} left"]

    def left(self, states: Counter[str]) -> float | None:
        """Seconds until all is done, if all jobs take alike; None if that can't be told yet."""
        now = {label: progress.share or 0.0 for label, progress in self.running.items()}
        gained = sum(now.get(label, 1.0) - before for label, before in self.before.items())
        rest = states["waiting"] + sum(1 - share for share in now.values())
        elapsed = time.monotonic() - self.since
        return elapsed * rest / gained if gained > 0.02 else None

    @property
    def farewell(self) -> str:
        """What is said on a signal."""
        return "Stopping all runs after their batch; Ctrl-C leaves at once."


class SweepScreen(SweepLines):
    """A bar for each job that goes on, below a line for each that has ended."""

    def __init__(self, drawn: Bars, record: SweepRecord, interrupts: Interrupts) -> None:
        super().__init__(drawn.console, record, interrupts)
        self.bars = drawn
        self.tasks: dict[str, bars.TaskID] = {}

    def job_started(self, job: SweepJob) -> None:
        """Show a bar."""
        self.running[job.label] = JobProgress("begins")
        self.tasks[job.label] = self.bars.add_task(
            output.safe(job.label), total=1.0, amount="begins"
        )
        self.sum_up()

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """Move the bar, or replace it by a line."""
        super().job_event(job, event)
        if isinstance(event, JobDone | JobStopped | JobFailed):
            self.bars.remove_task(self.tasks.pop(job.label))
        self.sum_up()

    def show(self, job: SweepJob, progress: JobProgress) -> None:
        """Show how far a job is."""
        left = "" if progress.left is None else f", {output.duration(progress.left)} left"
        bar = self.tasks[job.label]
        self.bars.update(bar, completed=progress.share, amount=f"{progress.doing}{left}")

    def sum_up(self) -> None:
        """Show how far all of it is, unless a signal was acknowledged there."""
        if self.interrupts.received is None:
            self.bars.details = " · ".join(self.counts())

    def stopping(self) -> None:
        """Acknowledge a signal where it will show when the bars are next drawn."""
        self.bars.details = self.farewell
