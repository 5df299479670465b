"""`densekd.sweep`: all runs of an experiment."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from densekd.api.signature import with_keywords
from densekd.config.keywords import (
    COMPRESSION_KEYS,
    RUN_KEYS,
    SweepKeywords,
    as_setting,
    settings_of,
    with_overrides,
)
from densekd.config.settings_tree import plain
from densekd.display import output
from densekd.display.interrupts import interruptible
from densekd.display.progress import Bars, display_target
from densekd.display.sweep_progress import SweepDisplay, left_out, summary
from densekd.files import expand_home
from densekd.jobs.events import WorkerPool
from densekd.parts import is_reference
from densekd.sweeps.experiment_file import read_experiment
from densekd.sweeps.jobs import SweepPlan, plan
from densekd.sweeps.library import find_experiment
from densekd.sweeps.outcome import SweepOutcome
from densekd.sweeps.sweep import SweepRecord, carry_out, sweep_folder
from densekd.sweeps.work import make_finished, start_pool
from densekd.training.callbacks import Stopped


@with_keywords(SweepKeywords)
def sweep(
    experiment: Path | str,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    scale: float | None = None,
    out: Path | str = "runs",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Unpack[SweepKeywords],
) -> SweepOutcome:
    """Do all runs of an experiment, several at the same time; finished runs are only read.

    Does what ``densekd sweep`` does, in the same folders, in worker processes: in a script, call
    it under ``if __name__ == "__main__":``. Methods, networks and other parts may be Python
    values, in the grid too; then the runs are done one after the other in this process. Ctrl-C
    saves all runs and raises `densekd.Stopped`; the same call resumes them. A failed run doesn't
    stop the others.

    Args:
        experiment: the name of an experiment, as ``densekd sweep --list`` shows them, or a TOML
            file.
        grid: values of some settings, one run for each combination, such as
            ``{"method": ["gkd", "rdkd"], "seed": [1, 2, 3]}``. Replaces or extends the grid of the
            experiment. A key is a keyword of `densekd.run` or a dotted setting.
        scale: train for a share of all epochs, such as 0.1, to try things out.
        out: the folder that holds the run folders.
        workers: runs at the same time; by default half the number of processors.
        quiet: show no progress.
        settings: those of all runs, as for `densekd.run`; and ``pick`` (settings of the grid to
            tune by validation images), ``pick_tasks``, ``engine`` (``"local"`` or ``"ray"``),
            ``address`` (of a Ray cluster) and ``override``.

    Returns:
        The results of the finished runs, with ``points`` and ``failures``.

    Raises:
        ValueError: the experiment or a setting is wrong.
        Stopped: it was interrupted and saved.

    Example:
        >>> import densekd
        >>> grid = {"method": ["gkd", "rdkd"], "steps": [1]}
        >>> done = densekd.sweep(
        ...     "table4-distillations", data="digits", grid=grid, scale=0.01, workers=1, quiet=True
        ... )
        >>> [point["method.name"] for point in done.points], done.failures
        (['gkd', 'rdkd'], {})
        >>> done[0].accuracy > 0.1
        True
    """
    given: dict[str, Any] = dict(settings)
    changes, pick = given.pop("override", ()), given.pop("pick", ())
    pick_tasks = given.pop("pick_tasks", None)
    where = workers, given.pop("engine", "local"), given.pop("address", None)
    made = read_experiment(find_experiment(str(experiment)))
    keys = COMPRESSION_KEYS if made.kind == "compression" else RUN_KEYS
    axes = dict(_axis(keys.get(name, name), values) for name, values in (grid or {}).items())
    made = made.with_axes(plain(axes)).with_pick(pick, pick_tasks)
    tree = with_overrides(settings_of(given, keys), changes)
    pool = partial(start_pool, *where, python_value=_python_value([axes, tree]))
    planned = plan(made, expand_home(out), tree, scale)
    return SweepOutcome(carry_out_sweep(planned, pool, quiet=quiet))


def _axis(key: str, values: Any) -> tuple[str, list[Any]]:
    """A key of the grid, and its values as settings."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"grid has a list of values for {key}, not {values!r}.")
    return key, [as_setting(key, value) for value in values]


def _python_value(settings: Any) -> str | None:
    """The first reference to a Python value among settings; None if there is none."""
    if isinstance(settings, Mapping):
        settings = [*settings.values()]
    if isinstance(settings, list | tuple):
        return next(filter(None, map(_python_value, settings)), None)
    named = isinstance(settings, str) and settings.startswith("python:")
    return settings if named and is_reference(settings) else None


def carry_out_sweep(
    planned: SweepPlan, pool: Callable[[], WorkerPool], *, quiet: bool
) -> SweepRecord:
    """Do the unfinished runs of a sweep while showing its progress.

    Args:
        planned: the runs.
        pool: starts the workers; called only if there is anything to do.
        quiet: show no progress.

    Raises:
        Stopped: it was interrupted and saved.
    """
    with interruptible() as interrupts, sweep_folder(planned):
        record = SweepRecord(planned, make_finished())
        record.write()
        left = record.unfinished()
        if not quiet:
            console = output.console(stderr=True)
            for line in (summary(planned, len(left)), *left_out(planned)):
                console.print(line, soft_wrap=True)
        if not left and planned.experiment.search is None:
            return record
        with contextlib.closing(pool()) as workers, display_target(quiet, Bars) as target:
            if not carry_out(record, workers, SweepDisplay(target, record, interrupts)):
                raise Stopped
        return record
