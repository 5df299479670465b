"""The plan and the outcome of a sweep, as tables and sentences."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from densekd.cli import output
from densekd.runs.record import read_result
from densekd.sweeps.jobs import SweepPlan
from densekd.sweeps.sweep import SweepRecord
from densekd.sweeps.work import finished


def summary(sweep: SweepPlan, left: int) -> str:
    """How many runs and bases there are, in a line."""
    runs, bases = len(sweep.jobs), len({job.shares for job in sweep.jobs})
    done = f" ({runs - left} already finished)" if left < runs else ""
    return (
        f"{_title(sweep)}: {output.count(runs, 'run')}{done}, {output.count(bases, _base(sweep))}."
    )


def show_sweep_plan(sweep: SweepPlan, console: Console) -> None:
    """List the runs, the bases that they share, and their states."""
    left = sum(not finished(job) for job in sweep.jobs)
    console.print(summary(sweep, left), soft_wrap=True)
    numbers = {shares: n for n, shares in enumerate(dict.fromkeys(j.shares for j in sweep.jobs), 1)}
    table = output.table("run", _base(sweep), "state", "folder")
    for job in sweep.jobs:
        begun = "started" if job.folder.exists() else "waiting"
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
        value, seconds = result.get(measure), training_seconds(result)
        reached = (
            output.percent(value) if percents else "-" if seconds is None else f"{seconds:.0f}"
        )
        minutes = "-" if seconds is None else f"{seconds / 60:.1f}"
        table.add_row(output.safe(job.label), record.entry(job)["state"], reached, minutes)
    console.print(table)
    if percents:
        console.print(f"%: {measure.replace('_', ' ')}. Minutes: training time, with the base.")
    for line in _outcome_lines(record):
        console.print(line, soft_wrap=True)


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
    apart = saved = 0.0
    bases: dict[str, float] = {}
    for job in sweep.jobs:
        result = read_result(job.folder) or {}
        seconds = training_seconds(result)
        if seconds is None:
            continue
        apart += seconds
        base = result["steps"][0]["seconds"] if "steps" in result else 0.0
        if job.shares in bases:
            saved += base
        bases[job.shares] = base
    return {"together": apart - saved, "apart": apart, "bases": len(bases)}


def training_seconds(result: Mapping[str, Any]) -> float | None:
    """The training time of a run with its base; None if it isn't finished."""
    if "steps" in result:
        return float(sum(step["seconds"] for step in result["steps"]))
    return result.get("seconds")


def _outcome_lines(record: SweepRecord) -> list[str]:
    sweep = record.sweep
    states = Counter(record.entry(job)["state"] for job in sweep.jobs)
    of = f"{states['finished']} of {output.count(len(sweep.jobs), 'run')} finished"
    failed = f", {states['failed']} failed" if states["failed"] else ""
    lines = [f"{_title(sweep)}: {of}{failed}."]
    for job in sweep.jobs:
        if record.entry(job)["state"] == "failed":
            lines.append(f"{output.safe(job.label)} failed: {record.entry(job)['reason']}")
    if states["failed"]:
        traces = sweep.folder / "failures"
        where = (
            f" Unexpected errors are logged in {output.safe(traces)}." if traces.exists() else ""
        )
        lines.append(f"Run the same command again to retry failed runs.{where}")
    times = training_times(sweep)
    if sweep.experiment.kind == "runs" and states["finished"]:
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
