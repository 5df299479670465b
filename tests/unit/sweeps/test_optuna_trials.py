import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from densekd.methods.paper import DenseOptions, dense
from densekd.methods.schedule import Schedules
from densekd.parts import refer
from densekd.runs.check import repair_run
from densekd.sweeps.experiment_file import Experiment
from densekd.sweeps.jobs import plan
from densekd.sweeps.outcome import SweepOutcome
from densekd.sweeps.search import Parameter, Search
from densekd.sweeps.sweep import SweepObserver, SweepRecord, carry_out, sweep_folder

from support.scripted_pool import Script, ScriptedPool, has_result

# Not imported here: only the test process that runs this file needs it.
pytestmark = pytest.mark.skipif(find_spec("optuna") is None, reason="no Optuna")

KEY = "method.options.temperature"
SEARCH = Search("optuna", {KEY: Parameter(low=0.5, high=8.0, log=True)}, trials=8, seed=1)
MINE = Experiment(
    name="mine",
    title="Mine",
    about="About.",
    kind="runs",
    measure="average_incremental_accuracy",
    settings={"data": {"validation": 0.2}},
    grid={"method.name": ("gkd", "rdkd"), "scenario.steps": (5,), "seed": (1, 2)},
    skip=(),
    rows="method.name",
    columns="scenario.steps",
    flatness=False,
    targets=(),
    search=SEARCH,
    text="""
title = "Mine"
about = "About."
settings.data.validation = 0.2
grid = { "method.name" = ["gkd", "rdkd"], "scenario.steps" = [5], seed = [1, 2] }
table = { rows = "method.name", columns = "scenario.steps" }
""",
)


def experiment(**changes: Any) -> Experiment:
    return dataclasses.replace(MINE, search=dataclasses.replace(SEARCH, **changes))


def script(point: Any) -> tuple[list[float], float]:
    """Accuracies fall from task to task; the best temperature is 3."""
    start = 0.9 - abs(point[KEY] - 3) / 20
    return [start - 0.05 * task for task in range(point.get("scenario.first", 6))], 0.5


def sweep(
    out: Path, made: Experiment = MINE, script: Script = script, stop_after: int | None = None
) -> tuple[SweepRecord, ScriptedPool]:
    planned, pool = plan(made, out), ScriptedPool(script, stop_after)
    assert planned.jobs == ()
    with sweep_folder(planned):
        record = SweepRecord(planned, has_result)
        assert carry_out(record, pool, SweepObserver())
    return record, pool


def studies(folder: Path) -> dict[str, list[Any]]:
    import optuna

    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
    found = {
        name: optuna.load_study(study_name=name, storage=storage).trials
        for name in optuna.get_all_study_names(storage)
    }
    storage.remove_session()
    storage.engine.dispose()
    return found


def values(record: SweepRecord, state: str | None = None) -> list[float]:
    jobs = [j for j in record.sweep.jobs if state in (None, record.entry(j)["state"])]
    return [job.point[KEY] for job in jobs]


@pytest.mark.slow
def test_a_study_for_each_cell_and_the_pick_for_all_seeds(tmp_path: Path) -> None:
    record, _ = sweep(tmp_path, experiment(prune_after=99))
    found = studies(record.sweep.folder)
    assert [name.partition(" (")[0] for name in found] == ["gkd steps=5", "rdkd steps=5"]
    for trials in found.values():
        assert [trial.number for trial in trials] == list(range(8))
        assert {trial.state.name for trial in trials} == {"COMPLETE"}
        assert all(0.5 <= trial.params[KEY] <= 8 for trial in trials)
    assert [pick.trials for pick in record.picks] == [8, 8]
    for pick, trials in zip(record.picks, found.values(), strict=True):
        assert pick.values[KEY] == max(trials, key=lambda trial: trial.value).params[KEY]
        assert pick.values[KEY] == pytest.approx(3, abs=2)
    # Trials have the first seed; the other one is added for the picks.
    assert [job.point["seed"] for job in record.sweep.jobs] == [1] * 16 + [2] * 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SweepRecord:
    """A sweep that nothing happened to."""
    return sweep(tmp_path_factory.mktemp("whole"))[0]


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [0, 3, 8])
def test_a_killed_sweep_goes_on_with_the_same_study(
    stop_after: int, whole: SweepRecord, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "killed", stop_after=stop_after)
    resumed, pool = sweep(tmp_path / "killed")
    assert sorted(values(resumed)) == sorted(values(whole))
    assert resumed.picks == whole.picks
    assert sorted(values(resumed, "pruned")) == sorted(values(whole, "pruned"))
    # Nothing is trained twice, and no trial is asked for twice.
    for trials in studies(resumed.sweep.folder).values():
        assert [trial.number for trial in trials] == list(range(8))
        assert len({trial.params[KEY] for trial in trials}) == 8
        assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    assert len(pool.done) == len(values(whole, "finished")) - stop_after
    again, idle = sweep(tmp_path / "killed")
    assert idle.started == []
    assert again.picks == whole.picks


def test_a_trial_below_the_median_is_stopped_and_recorded_as_pruned(tmp_path: Path) -> None:
    seen: list[float] = []

    def worse(point: Any) -> tuple[list[float], float]:
        """The first three are equal, later ones worse after the base task."""
        seen.append(point[KEY])
        rest = 0.8 if len(dict.fromkeys(seen)) <= 3 else 0.2
        return [0.9, *[rest] * 5], 0.5

    one = dataclasses.replace(experiment(prune_after=3, trials=5), grid={**MINE.grid})
    one = one.with_axes(["method.name=gkd", "seed=1"])
    record, pool = sweep(tmp_path, one, worse)
    states = [record.entry(job)["state"] for job in record.sweep.jobs]
    assert states == ["finished"] * 3 + ["pruned"] * 2
    assert "below the median" in record.entry(record.sweep.jobs[3])["reason"]
    assert len(pool.done) == 3
    ((name, trials),) = studies(record.sweep.folder).items()
    assert name.startswith("gkd steps=5")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3 + ["PRUNED"] * 2
    # Equal after the base task, given up after the next: sums, because accuracies fall.
    assert trials[3].intermediate_values == pytest.approx({0: 0.9, 1: 1.1})
    assert record.picks[0].trials == 5


def test_a_trial_that_was_killed_while_its_values_were_drawn_gets_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    weight = "method.options.lambda_base"
    both = {KEY: Parameter(low=0.5, high=8.0), weight: Parameter(low=1.0, high=9.0)}
    one = experiment(trials=12, prune_after=99, parameters=both)
    one = one.with_axes(["method.name=gkd", "seed=1"])
    points = [job.point for job in sweep(tmp_path / "whole", one)[0].sweep.jobs]
    assert all(weight in point for point in points)
    suggest = optuna.trial.Trial._suggest
    for killed in (3, 11):  # of which the first is drawn at random, the second by Optuna

        def once(trial: Any, name: str, distribution: Any, killed: int = killed) -> Any:
            if trial.number == killed and name == weight:
                raise KeyboardInterrupt
            return suggest(trial, name, distribution)

        out = tmp_path / str(killed)
        with monkeypatch.context() as patch:
            patch.setattr(optuna.trial.Trial, "_suggest", once)
            with pytest.raises(KeyboardInterrupt):
                sweep(out, one)
        resumed, _ = sweep(out, one)
        assert [job.point for job in resumed.sweep.jobs] == points


def test_a_failed_trial_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    one = experiment(trials=3).with_axes(["method.name=gkd", "seed=1"])
    first, _ = sweep(tmp_path, one, lambda point: ([], 0.0))
    assert [first.entry(job)["state"] for job in first.sweep.jobs] == ["failed"] * 3
    assert first.picks == []
    second, pool = sweep(tmp_path, one)
    assert values(second) == values(first)
    assert len(pool.done) == 3


def test_values_of_an_earlier_trial_cost_nothing(tmp_path: Path) -> None:
    few = {KEY: Parameter((1.0, 2.0))}
    one = experiment(trials=6, parameters=few).with_axes(["method.name=gkd", "seed=1"])
    record, pool = sweep(tmp_path, one)
    assert sorted(values(record)) == [1.0, 2.0]
    assert len(pool.started) == 2
    ((_, trials),) = studies(record.sweep.folder).items()
    assert len(trials) == 6
    assert record.picks[0].values == {KEY: 2.0}


def test_the_first_tasks_choose_and_the_pick_learns_all(tmp_path: Path) -> None:
    one = experiment(trials=3, tasks=2).with_axes(["method.name=gkd"])
    record, _ = sweep(tmp_path, one)
    firsts = [job.point.get("scenario.first") for job in record.sweep.jobs]
    assert firsts == [2, 2, 2, None, None]
    assert [job.point["seed"] for job in record.sweep.jobs] == [1, 1, 1, 1, 2]


def test_a_damaged_study_is_set_aside_and_what_was_trained_counts_again(tmp_path: Path) -> None:
    one = experiment(trials=3, prune_after=99).with_axes(["method.name=gkd", "seed=1"])
    before, _ = sweep(tmp_path, one)
    file = before.sweep.folder / "study.db"
    whole = file.read_bytes()
    for content in (b"no database" * 99, whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"study\.db is damaged: .*check .* --repair` sets"):
            sweep(tmp_path, one)
        found, aside = repair_run(before.sweep.folder)
        assert found.unreadable == (file,)
        assert aside is not None
        assert (aside / "study.db").read_bytes() == content
        again, _ = sweep(tmp_path, one)
        assert again.picks == before.picks


def test_what_optuna_cannot_take_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = experiment(parameters={"training.base.milestones": Parameter(([1], [2]))})
    decay = {"training": {"base": {"decay": "milestones"}}}
    lists = dataclasses.replace(lists, settings={**MINE.settings, **decay})
    with pytest.raises(ValueError, match="Optuna takes numbers and texts, no lists"):
        carry_out(
            SweepRecord(plan(lists, tmp_path), has_result), ScriptedPool(script), SweepObserver()
        )
    monkeypatch.setattr("densekd.sweeps.jobs.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'densekd\[optuna\]'"):
        plan(MINE, tmp_path)


def test_cells_of_python_values_with_one_name_have_a_study_each(tmp_path: Path) -> None:
    methods = tuple(refer(dense("gkd", DenseOptions(weight), Schedules())) for weight in (2.0, 3.0))
    search = Search("optuna", {"training.base.lr": Parameter((0.1,))}, trials=1)
    grid = {"method.name": methods, "scenario.steps": (5,)}
    made = dataclasses.replace(MINE, grid=grid, search=search)
    record, _ = sweep(tmp_path, made, lambda point: ([0.5] * 6, 0.5))
    assert [job.point["method.name"] for job in record.sweep.jobs] == list(methods)
    assert len({job.label for job in record.sweep.jobs}) == 1
    assert [len(trials) for trials in studies(record.sweep.folder).values()] == [1, 1]


def test_values_that_can_not_be_end_their_trial_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # AdamW's warm-up must be shorter than its epochs: the range is right only in part.
    warmup = "training.increment.warmup"
    found = {warmup: Parameter(low=0, high=30), KEY: Parameter(low=1.0, high=2.0)}
    made = experiment(parameters=found, trials=6)
    made = dataclasses.replace(made, grid={**MINE.grid, "method.name": ("gkd",)})
    record, pool = sweep(tmp_path, made, lambda point: ([0.5] * 6, 0.5))
    assert "is left out: " in caplog.text
    tried = [job.point[warmup] for job in pool.done]
    assert 0 < len(tried) < 6 + 1
    (trials,) = studies(record.sweep.folder).values()
    assert len(trials) == 6
    assert all(trial.state.is_finished() for trial in trials)
    _, more = sweep(tmp_path, made, lambda point: ([0.5] * 6, 0.5))
    assert more.done == []


def test_in_python_a_search_shows_the_picked_runs_alone(tmp_path: Path) -> None:
    record, _ = sweep(tmp_path, experiment(trials=3))
    done = SweepOutcome(record)
    assert [pick["method.name"] for pick in done.picks] == ["gkd", "rdkd"]
    assert len(done) == 4  # two methods with two seeds
    for point in done.points:
        (pick,) = (each for each in done.picks if each["method.name"] == point["method.name"])
        assert point[KEY] == pick[KEY]
