"""The jobs of an experiment, with the settings and the folder of each."""

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from densekd.checks import missing_extra
from densekd.compression.config import (
    CompressionConfig,
    compression_folder,
    resolve_compression,
    teacher_settings,
)
from densekd.config.digests import base_settings
from densekd.config.own_parts import logger_references, own_references
from densekd.config.schema import Config, resolve
from densekd.config.settings_tree import (
    INERT_KEYS,
    digest,
    excluded_by,
    flat,
    given,
    merge,
    nested,
    plain,
    settle_spelling,
    with_epochs_as_text,
)
from densekd.data.scenario import task_sizes
from densekd.data.sources import count_classes
from densekd.parts import find, load_files
from densekd.runs.run import run_folder
from densekd.sweeps.experiment_file import Experiment, JobKind, label
from densekd.sweeps.pick import FIRST_TASKS
from densekd.sweeps.search import Search, hyper_parameters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepJob:
    """One point of an experiment's grid."""

    kind: JobKind
    point: Mapping[str, Any]  # its values on the axes, by dotted key
    tree: Mapping[str, Any]  # its settings
    folder: Path
    base_key: str  # identifies its base or teacher; jobs with the same value share it
    flatness: bool  # whether to measure it after the run

    @property
    def label(self) -> str:
        """The point in a few words."""
        return label(self.point)

    @property
    def waits_for(self) -> str:
        """Identifies the base or teacher that it needs; unique for a student that learns alone."""
        alone = self.kind == "compression" and self.tree.get("method") == "alone"
        return str(self.folder) if alone else self.base_key


@dataclass(frozen=True)
class ImpossiblePoint:
    """A point of the grid that can't be run."""

    point: Mapping[str, Any]
    reason: str
    refused: bool  # its settings are wrong; if False, its tasks can't divide the classes

    @property
    def label(self) -> str:
        """The point in a few words."""
        return label(self.point)


@dataclass(frozen=True)
class SweepPlan:
    """The jobs of a sweep."""

    experiment: Experiment  # with the axes given on the command line
    scale: float | None  # the share of all epochs to train
    changes: Mapping[str, Any]  # settings given besides the file's, as a tree
    folder: Path  # where the record is kept
    jobs: tuple[SweepJob, ...]  # one for each point of the grid that can be run
    impossible: tuple[ImpossiblePoint, ...] = ()  # the other points

    def job(self, point: Mapping[str, Any]) -> SweepJob:
        """Make the job of a point that a search adds.

        Raises:
            ValueError: its settings are not valid.
        """
        experiment, out = self.experiment, self.folder.parent.parent
        tree = _tree(experiment, self.changes, point, self.scale)
        return _job(experiment, point, tree, _resolve(experiment, tree), out)


def plan(
    experiment: Experiment,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    scale: float | None = None,
    *,
    only_list: bool = False,
) -> SweepPlan:
    """List the jobs of an experiment and check the settings of each.

    The ``changes``, as a tree, override the experiment's settings; ``scale`` is the share of all
    epochs to train. Points whose tasks can't divide the classes of the data are left out; the
    number of classes isn't known yet for the hub's and custom data, whose points stay.

    Raises:
        ValueError: the settings of a point are wrong, or no point can be run; with ``only_list``,
            such points are only listed.
    """
    changes = {} if changes is None else changes
    _check_changes(experiment, changes)
    classes = functools.cache(count_classes)  # a folder of images is listed once
    jobs: list[SweepJob] = []
    impossible: list[ImpossiblePoint] = []
    for point in _points(experiment, changes):
        refused = True
        try:
            tree = _tree(experiment, changes, point, scale)
            config = _resolve(experiment, tree)
            refused = False
            if isinstance(config, Config):
                _check_tasks(config, classes(config.data.source, config.data.classes_file))
        except ValueError as error:
            impossible.append(ImpossiblePoint(point, str(error), refused))
            continue
        jobs.append(_job(experiment, point, tree, config, out))
    if not only_list:
        _refuse(experiment, [each for each in impossible if each.refused or not jobs])
    folder = out / "sweeps" / _folder_name(experiment, changes, scale)
    if experiment.search is not None and experiment.search.kind == "optuna":
        jobs = []  # these only served to check the settings
    return SweepPlan(experiment, scale, changes, folder, tuple(jobs), tuple(impossible))


def _tree(
    experiment: Experiment,
    changes: Mapping[str, Any],
    point: Mapping[str, Any],
    scale: float | None,
) -> dict[str, Any]:
    """The settings of a point."""
    tree = merge(experiment.settings, with_epochs_as_text(merge(changes, nested(point))))
    return tree if scale is None else scaled(tree, scale)


def _check_changes(experiment: Experiment, changes: Mapping[str, Any]) -> None:
    """Raise ValueError for changes that the grid would override in every point."""
    axes = {**experiment.grid, **dict.fromkeys(experiment.searched, ())}
    for key, value in flat(changes).items():
        if key in axes:
            raise ValueError(
                f"{key} is an axis of {experiment.name}; give its values by --grid {key}=... ."
            )
        for axis in excluded_by(key):
            if value is not None and None not in axes.get(axis, (None,)):
                raise ValueError(
                    f"{key} has no effect on {experiment.name}, because its grid has {axis}; leave "
                    f"it out, or write an experiment file without {axis}."
                )


def _points(experiment: Experiment, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points to run; for Optuna, a sample trial for each point of the grid, as a check."""
    search, points = experiment.search, experiment.points()
    if search is None:
        _warn_of_tuning(experiment, merge(experiment.settings, changes, nested(points[0])))
        return points
    _check_search(experiment, search)
    optuna = search.parameters if search.kind == "optuna" else {}
    values = {key: parameter.at(0.5) for key, parameter in optuna.items()}
    return [{**trial_point(search, point), **values} for point in points]


def _refuse(experiment: Experiment, impossible: Sequence[ImpossiblePoint]) -> None:
    """Raise ValueError about the first point, if there is one."""
    for each in impossible[:1]:
        rest = len(impossible) - 1
        more = f" Impossible runs besides: {rest}; --dry-run lists them." if rest else ""
        raise ValueError(f"{experiment.name}, {each.label}: {each.reason}{more}")


def trial_point(search: Search, point: Mapping[str, Any]) -> dict[str, Any]:
    """The point of a trial, which may learn only the first tasks."""
    return {**point, **({} if search.tasks is None else {FIRST_TASKS: search.tasks})}


def _check_search(experiment: Experiment, search: Search) -> None:
    if experiment.kind == "compression":
        raise ValueError("A compression has no validation images; leave the search out.")
    # Also without search.tasks, because this key distinguishes trials from picks.
    if FIRST_TASKS in {**experiment.grid, **search.parameters}:
        raise ValueError(
            f"{FIRST_TASKS} is what search.tasks sets, so it can't be an axis of a search; leave "
            "it out of the grid."
        )
    if search.kind == "optuna" and find_spec("optuna") is None:
        raise missing_extra("This search", "optuna", ", or search by grid or random")


def _warn_of_tuning(experiment: Experiment, tree: Mapping[str, Any]) -> None:
    """Warn if hyper-parameters vary and no validation images exist to choose them by."""
    tuned = hyper_parameters(experiment.grid)
    if tuned and not given(tree, "data", "validation"):
        logger.warning(
            "If you choose %s by these runs, you tune on the test images; hold out some training "
            "images by --validation 0.1, and pick by them with --pick %s.",
            *(" and ".join(tuned), tuned[0]),
        )


def scaled(tree: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Shorten all schedules in the settings in proportion."""
    if not 0 < scale < float("inf"):
        raise ValueError(f"a scale must be a number above 0, such as 0.1, not {scale}.")
    epochs = settle_spelling(tree).get("epochs")
    if isinstance(epochs, int):
        raise ValueError(
            f"epochs = {epochs} is a number of epochs, which a scale can't shorten in proportion; "
            "give a share of them, such as 0.5, or no scale."
        )
    share = scale * (1.0 if epochs is None else epochs)
    return {**tree, "epochs": f"{share!r}x" if share >= 1 else share}  # 1.0 would be one epoch


def _folder_name(experiment: Experiment, changes: Mapping[str, Any], scale: float | None) -> str:
    """Name a sweep's folder by everything that changes its results."""
    matters = {key: value for key, value in flat(changes).items() if key not in INERT_KEYS}
    if experiment.picked:
        matters["pick"] = experiment.picked
    parts = [experiment.name]
    if scale is not None:
        parts.append(f"at-{scale:g}")
    if matters:
        parts.append(digest(plain(matters))[:6])
    return "-".join(parts)


def _resolve(experiment: Experiment, tree: Mapping[str, Any]) -> Config | CompressionConfig:
    config = resolve(tree) if experiment.kind == "runs" else resolve_compression(tree)
    if experiment.search is not None and not config.data.validation:
        raise ValueError(
            "a search picks by validation images, and there are none; hold some out by "
            "--validation 0.1, or data.validation = 0.1 in the settings."
        )
    references = [*own_references(config).values(), *logger_references(config)]
    load_files(references)
    for name in references:
        find(name)  # raises if it is missing
    if config.engine.ranks != 1:
        raise ValueError(
            "a sweep has one device for each run; leave engine.devices and engine.nodes out, or "
            "use `densekd run`."
        )
    return config


def _check_tasks(config: Config, classes: int | None) -> None:
    """Raise ValueError if the tasks can't divide ``classes``; None is an unknown number."""
    protocol = config.scenario
    if isinstance(protocol.tasks, tuple) and classes is not None:
        sizes = [task if isinstance(task, int) else len(task) for task in protocol.tasks]
        if sum(sizes) != classes:
            raise ValueError(f"Tasks of {sizes} classes do not divide {classes} classes.")
    elif protocol.tasks is None and classes is not None:
        task_sizes(
            classes,
            steps=protocol.steps,
            base=protocol.base,
            increment=protocol.increment,
            equal=protocol.equal,
        )


def _job(
    experiment: Experiment,
    point: Mapping[str, Any],
    tree: Mapping[str, Any],
    config: Config | CompressionConfig,
    out: Path,
) -> SweepJob:
    if isinstance(config, CompressionConfig):
        folder, base_key = compression_folder(config, out), digest(plain(teacher_settings(config)))
    else:
        scenario = config.scenario
        # The number of base classes isn't known before the data is read; hash what decides it.
        base_classes = {"base": scenario.base, "equal": scenario.equal and scenario.steps}
        known = [base_settings(config, 0), base_classes, str(scenario.tasks)]
        folder, base_key = run_folder(config, out), digest(known)
    return SweepJob(experiment.kind, point, plain(tree), folder, base_key, experiment.flatness)
