"""What is seen of a sweep while it goes on, on stderr."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import rich.progress as bars
from rich.console import Console

from densekd.cli import show
from densekd.cli.signals import Interrupts
from densekd.cli.voice import Bars, Silent, Spoken
from densekd.experiment.ledger import Ledger
from densekd.experiment.plan import Job
from densekd.experiment.run import read_result
from densekd.experiment.sweep import Overseer
from densekd.experiment.workers import Done, Failed, Halted, News, Progress, Warned


@contextmanager
def overseeing(ledger: Ledger, interrupts: Interrupts, *, quiet: bool) -> Iterator[Overseer]:
    """An overseer that fits where stderr goes."""
    console = show.console(stderr=True)
    if quiet:
        yield Quiet(interrupts)
    elif console.is_terminal:
        with Bars(console, width=24) as drawn:
            yield Screen(drawn, ledger, interrupts)
    else:
        yield Lines(console, ledger, interrupts)


class Quiet(Silent, Overseer):
    """Says nothing, but stops when it should."""


class Lines(Spoken, Overseer):
    """A line for each job that begins or ends, and now and then one about all, for a file."""

    def __init__(self, console: Console, ledger: Ledger, interrupts: Interrupts) -> None:
        super().__init__(console, interrupts)
        self.ledger = ledger
        self.pace = show.Pace()
        self.running: dict[str, Progress] = {}
        self.warned: set[str] = set()
        self.since = time.monotonic()
        # Of each job that went on in this call, the share that was done before it.
        self.before: dict[str, float] = {}

    def began(self, job: Job) -> None:
        """Say that a job begins."""
        self.running[job.label] = Progress("begins")
        self.say(f"{show.safe(job.label)}: begins")

    def heard(self, job: Job, news: News) -> None:
        """Say what is new; a warning only once, for many jobs may have it."""
        name = show.safe(job.label)
        if isinstance(news, Warned):
            if news.text not in self.warned:
                self.say(f"Warning: {news.text} ({name})")
            self.warned.add(news.text)
        elif isinstance(news, Progress):
            if not self.before:  # workers take a while to start, but only once
                self.since = time.monotonic()
            self.before.setdefault(job.label, news.share)
            self.running[job.label] = news
            self.show(job, news)
        else:
            self.running.pop(job.label, None)
            self.say(f"{name}: {self.outcome(job, news)}")

    def show(self, job: Job, progress: Progress) -> None:
        """Say how far all of it is, now and then."""
        if self.pace.due():
            doing = (f"{show.safe(label)} {p.doing}" for label, p in self.running.items())
            self.say(f"{', '.join(self.counts())}; {'; '.join(doing)}")

    def outcome(self, job: Job, news: Done | Halted | Failed) -> str:
        """What became of a job."""
        if isinstance(news, Failed):
            return f"failed: {news.reason}"
        if isinstance(news, Halted):
            return "stopped and saved"
        measure = self.ledger.sweep.experiment.measure
        value = (read_result(job.folder) or {}).get(measure)
        reached = "" if value is None else f" with {show.percent(value)} %"
        return f"finished{reached}, {show.duration(self.ledger.entry(job)['seconds'])}"

    def counts(self) -> list[str]:
        """How many jobs are finished, failed, waiting, and when all will be."""
        states = Counter(self.ledger.entry(job)["state"] for job in self.ledger.sweep.jobs)
        words = [f"{states['finished']} of {states.total()} finished"]
        words += [f"{states[s]} {s}" for s in ("failed", "running", "waiting") if states[s]]
        left = self.left(states)
        return words if left is None else [*words, f"about {show.duration(left)} left"]

    def left(self, states: Counter[str]) -> float | None:
        """Seconds until all is done, if all jobs take alike; None if that can't be told yet."""
        now = {label: progress.share for label, progress in self.running.items()}
        gained = sum(now.get(label, 1.0) - before for label, before in self.before.items())
        rest = states["waiting"] + sum(1 - share for share in now.values())
        elapsed = time.monotonic() - self.since
        return elapsed * rest / gained if gained > 0.02 else None

    @property
    def farewell(self) -> str:
        """What is said on a signal."""
        return "Stopping all runs after their batch; Ctrl-C leaves at once."


class Screen(Lines):
    """A bar for each job that goes on, below a line for each that has ended."""

    def __init__(self, drawn: Bars, ledger: Ledger, interrupts: Interrupts) -> None:
        super().__init__(drawn.console, ledger, interrupts)
        self.bars = drawn
        self.tasks: dict[str, bars.TaskID] = {}

    def began(self, job: Job) -> None:
        """Show a bar."""
        self.running[job.label] = Progress("begins")
        self.tasks[job.label] = self.bars.add_task(show.safe(job.label), total=1.0, amount="begins")
        self.sum_up()

    def heard(self, job: Job, news: News) -> None:
        """Move the bar, or replace it by a line."""
        super().heard(job, news)
        if isinstance(news, Done | Halted | Failed):
            self.bars.remove_task(self.tasks.pop(job.label))
        self.sum_up()

    def show(self, job: Job, progress: Progress) -> None:
        """Show how far a job is."""
        left = "" if progress.left is None else f", {show.duration(progress.left)} left"
        bar = self.tasks[job.label]
        self.bars.update(bar, completed=progress.share, amount=f"{progress.doing}{left}")

    def sum_up(self) -> None:
        """Show how far all of it is, unless a signal was acknowledged there."""
        if self.interrupts.received is None:
            self.bars.details = " · ".join(self.counts())

    def stopping(self) -> None:
        """Acknowledge a signal where it will show when the bars are next drawn."""
        self.bars.details = self.farewell
