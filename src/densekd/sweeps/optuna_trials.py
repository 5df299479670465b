"""Trials that Optuna proposes; its studies are in an SQLite file, so that they resume."""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from densekd.config.settings_tree import digest, plain
from densekd.jobs.events import JobDone, JobEvent, JobProgress, JobStopped
from densekd.runs.stored import STUDY_FILE, check_study
from densekd.seeds import Seeds
from densekd.sweeps.experiment_file import label, short_value
from densekd.sweeps.jobs import SweepJob, trial_point
from densekd.sweeps.pick import cell_of
from densekd.sweeps.search import Parameter, Search
from densekd.sweeps.sweep import (
    PRUNED,
    JobSource,
    SweepRecord,
    add_repair_hint,
    validation_of,
)

logger = logging.getLogger(__name__)


class OptunaTrials(JobSource):
    """One study for each cell of the table, at the first seed and class order of its grid.

    Adds the trials of earlier calls to the record; those that were running go on. A trial that
    failed stays open in the study, so that the next call tries it again.
    """

    def __init__(self, record: SweepRecord, search: Search) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.record, self.search = record, search
        file = (record.sweep.folder / STUDY_FILE).absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            with add_repair_hint(record.sweep.folder):
                check_study(file)
        self._storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        impossible = [cell_of(e.point, search.parameters) for e in record.sweep.impossible]
        cells: dict[str, Mapping[str, Any]] = {}
        for point in record.sweep.experiment.points():
            if (cell := cell_of(point, search.parameters)) not in impossible:
                cells.setdefault(repr(cell), point)
        self._studies = [_Study(self._storage, search, point) for point in cells.values()]
        self._open: dict[Path, tuple[_Study, int]] = {}  # trials that haven't ended, by folder
        self._given_up: set[Path] = set()
        for study in self._studies:
            for trial in study.trials:
                self._restore(study, trial)

    def propose(self) -> SweepJob | None:
        """Ask the study with the fewest trials for one more; None if all have enough."""
        while True:
            study = min(self._studies, key=lambda each: len(each.trials))
            if len(study.trials) >= self.search.trials:
                return None
            number, values = study.ask()
            job = self._job(study, number, values)
            if job is None:
                continue
            if job not in self.record:
                self._open[job.folder] = study, number
                return job
            # An earlier trial has the same values; end this one with its result, if there is one.
            study.tell(number, validation_of(job))

    def handle_event(self, job: SweepJob, event: JobEvent) -> bool:
        """Report a trial's event to its study; True to prune the trial."""
        if job.folder not in self._open:
            return False
        study, number = self._open[job.folder]
        if isinstance(event, JobDone):
            study.tell(number, validation_of(job))
            del self._open[job.folder]
        elif isinstance(event, JobStopped) and job.folder in self._given_up:
            study.tell(number, None)
            del self._open[job.folder]
        elif isinstance(event, JobProgress) and study.gives_up(number, event.scores):
            self._given_up.add(job.folder)
            return True
        return False

    def close(self) -> None:
        """Close the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _job(self, study: "_Study", number: int, values: Mapping[str, Any]) -> SweepJob | None:
        """The job of a trial; if its values are invalid, warn, end the trial and return None."""
        try:
            return self.record.sweep.job({**trial_point(self.search, study.point), **values})
        except ValueError as error:
            logger.warning("The trial %s is left out: %s", label(values), error)
            if study.trials[number].state == TrialState.RUNNING:
                study.tell(number, None)
            return None

    def _restore(self, study: "_Study", trial: FrozenTrial) -> None:
        """Add the job of an earlier call's trial to the record."""
        job = self._job(study, trial.number, trial.params)
        if job is None:
            return
        if job in self.record:
            if trial.state == TrialState.RUNNING:
                study.tell(trial.number, validation_of(job))
            return
        self.record.add(job)
        if trial.state == TrialState.PRUNED:
            self.record.set(job, "pruned", PRUNED)
        elif trial.state == TrialState.RUNNING:
            self._open[job.folder] = study, trial.number
            if self.record.entry(job)["state"] == "finished":  # never reported to the study
                self.handle_event(job, JobDone())


class _Study:
    """Optuna's study of one cell."""

    def __init__(
        self, storage: optuna.storages.RDBStorage, search: Search, point: Mapping[str, Any]
    ) -> None:
        self.search, self.point = search, point
        self._space = {k: _distribution(k, p) for k, p in search.parameters.items()}
        cell = cell_of(point, search.parameters)
        # Other ranges or fewer tasks make another study, because trials wouldn't be comparable.
        space = {key: vars(parameter) for key, parameter in search.parameters.items()}
        tells: dict[str, Any] = {"space": space, "tasks": search.tasks, "seed": search.seed}
        # The label can shorten values of two cells to the same text, so add them in full.
        if full := {key: value for key, value in cell.items() if short_value(value) != value}:
            tells["cell"] = full
        self._study = optuna.create_study(
            storage=storage,
            study_name=f"{label(cell)} ({digest(plain(tells))})",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=search.prune_after),
            load_if_exists=True,
        )
        for trial in self.trials:
            if trial.state == TrialState.RUNNING and trial.params.keys() != self._space.keys():
                self._complete(trial)

    @property
    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Create a trial; returns its number and values."""
        self._sample(len(self.trials))
        trial = self._study.ask(self._space)
        return trial.number, trial.params

    def _complete(self, trial: FrozenTrial) -> None:
        """Draw the missing values of a trial whose process was killed while drawing them."""
        self._sample(trial.number)
        again = optuna.trial.Trial(self._study, trial._trial_id)
        for key, distribution in self._space.items():
            alone = key not in again.relative_params and not distribution.single()
            if alone and key in trial.params:
                # Draw it again, so that the sampler's next value is what it would have been.
                self._study.sampler.sample_independent(self._study, trial, key, distribution)
            again._suggest(key, distribution)

    def _sample(self, number: int) -> None:
        """Seed the sampler by the trial's number, so that resuming doesn't change its values."""
        place = Seeds(self.search.seed).at(self._study.study_name, number)
        seed = place.number("search") % 2**32
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def tell(self, number: int, value: float | None) -> None:
        """End a trial; without a value it counts as pruned."""
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self._study.tell(number, value, state=state)

    def gives_up(self, number: int, scores: tuple[float, ...]) -> bool:
        """Report the accuracies after each task so far; True if they are below the median."""
        if not scores:
            return False
        frozen = self.trials[number]
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        # The pruner compares each trial's best value so far, but accuracies fall from task to task.
        # Their running sum rises, and orders trials like their mean.
        for step, total in enumerate(itertools.accumulate(scores)):
            if step not in frozen.intermediate_values:
                trial.report(total, step)
        return trial.should_prune()


def _distribution(key: str, parameter: Parameter) -> BaseDistribution:
    if parameter.values:
        kinds = (str, int, float, bool)
        if not all(isinstance(value, kinds) for value in parameter.values):
            raise ValueError(f"search.parameters.{key}: Optuna takes numbers and texts, no lists.")
        return CategoricalDistribution(parameter.values)
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
