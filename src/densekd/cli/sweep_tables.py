"""What a sweep will do, and what became of it, in tables and words."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from densekd.cli import output
from densekd.runs.record import read_result
from densekd.sweeps.jobs import SweepPlan
from densekd.sweeps.record import SweepRecord
from densekd.sweeps.work import finished


def summary(sweep: SweepPlan, left: int) -> str:
    """What there is to do, in a line."""
    runs, bases = len(sweep.jobs), len({job.shares for job in sweep.jobs})
    done = f", {runs - left} of them finished before" if left < runs else ""
    shared = "teacher" if sweep.experiment.kind == "compression" else "base"
    return (
        f"{output.safe(sweep.experiment.name)}{_scale(sweep)}: {_count(runs, 'run')}{done}, "
        f"with {_count(bases, shared)} in all."
    )


def show_plan(sweep: SweepPlan, console: Console) -> None:
    """List the runs, what they share, and what is finished."""
    left = sum(not finished(job) for job in sweep.jobs)
    console.print(summary(sweep, left), soft_wrap=True)
    numbers = {shares: n for n, shares in enumerate(dict.fromkeys(j.shares for j in sweep.jobs), 1)}
    shared = "teacher" if sweep.experiment.kind == "compression" else "base"
    table = output.table("run", shared, "state", "folder")
    for job in sweep.jobs:
        begun = "begun" if job.folder.exists() else "waiting"
        state = "finished" if finished(job) else begun
        folder = output.safe(job.folder)
        table.add_row(output.safe(job.label), str(numbers[job.shares]), state, folder)
    console.print(table)


def show_outcome(record: SweepRecord, console: Console) -> None:
    """What each run reached, how long it took, and what failed."""
    sweep, measure = record.sweep, record.sweep.experiment.measure
    percents = measure != "seconds"
    table = output.table("run", "state", numbers=("%" if percents else measure, "minutes"))
    for job in sweep.jobs:
        result = read_result(job.folder) or {}
        value, seconds = result.get(measure), trained(result)
        reached = (
            output.percent(value) if percents else "-" if seconds is None else f"{seconds:.0f}"
        )
        minutes = "-" if seconds is None else f"{seconds / 60:.1f}"
        table.add_row(output.safe(job.label), record.entry(job)["state"], reached, minutes)
    console.print(table)
    if percents:
        console.print(f"%: {measure.replace('_', ' ')}; minutes: of training, the base included.")
    for line in _words(record):
        console.print(line, soft_wrap=True)


def as_json(record: SweepRecord) -> dict[str, Any]:
    """The record of a sweep, and how long its training took."""
    sweep = record.sweep
    names = {"experiment": sweep.experiment.name, "folder": str(sweep.folder)}
    return {**names, **record.content(), "training": times(sweep)}


def times(sweep: SweepPlan) -> dict[str, float]:
    """Seconds of training of the finished runs.

    Returns:
        ``together``: what it took; ``apart``: what it would have taken, had each run trained its
        own base; ``bases``: how many were trained.
    """
    apart, bases = 0.0, dict[str, float]()
    saved = 0.0
    for job in sweep.jobs:
        result = read_result(job.folder) or {}
        seconds = trained(result)
        if seconds is None:
            continue
        apart += seconds
        own = result["steps"][0]["seconds"] if "steps" in result else 0.0
        if job.shares in bases:
            saved += own
        bases[job.shares] = own
    return {"together": apart - saved, "apart": apart, "bases": len(bases)}


def trained(result: Mapping[str, Any]) -> float | None:
    """How long a run was trained, the base included; None if it isn't finished."""
    if "steps" in result:
        return float(sum(step["seconds"] for step in result["steps"]))
    return result.get("seconds")


def _words(record: SweepRecord) -> list[str]:
    sweep = record.sweep
    states = Counter(record.entry(job)["state"] for job in sweep.jobs)
    of = f"{states['finished']} of {_count(len(sweep.jobs), 'run')} finished"
    failed = f", {states['failed']} failed" if states["failed"] else ""
    lines = [f"{output.safe(sweep.experiment.name)}{_scale(sweep)}: {of}{failed}."]
    for job in sweep.jobs:
        if record.entry(job)["state"] == "failed":
            reason = record.entry(job)["reason"]
            lines.append(f"{output.safe(job.label)} failed: {reason}")
    if states["failed"]:
        traces = sweep.folder / "failures"
        where = f" What nobody has foreseen is in {output.safe(traces)}." if traces.exists() else ""
        lines.append(f"Give the same command again to try again what failed.{where}")
    spent = times(sweep)
    if sweep.experiment.kind == "runs" and states["finished"]:
        lines.append(
            f"Training took {output.duration(spent['together'])} with "
            f"{_count(int(spent['bases']), 'base')} for {_count(states['finished'], 'run')}, and "
            f"would have taken {output.duration(spent['apart'])} with a base for each run; the "
            f"sweep took {output.duration(record.content()['seconds'])} by the clock."
        )
    lines.append(f"Its record is in {output.safe(sweep.folder)}.")
    return lines


def _scale(sweep: SweepPlan) -> str:
    return "" if sweep.scale is None else f" at scale {sweep.scale:g} of all epochs"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
