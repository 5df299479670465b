import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from densekd.config.schema import resolve
from densekd.files import read_sealed_text
from densekd.jobs.events import (
    JobChannel,
    JobDone,
    JobEvent,
    JobFailed,
    JobProgress,
    JobStopped,
    run_job,
)
from densekd.runs.run import run_folder
from densekd.sweeps.experiment_file import Experiment, label
from densekd.sweeps.jobs import SweepJob, SweepPlan, plan, scaled
from densekd.sweeps.sweep import JobQueue, SweepObserver, SweepRecord, carry_out, sweep_folder
from densekd.training.callbacks import Stopped

FOUR = Experiment(
    name="four",
    title="Four distillations",
    about="On digits.",
    kind="runs",
    measure="average_incremental_accuracy",
    settings={"data": {"source": "digits"}},
    grid={"method.name": ("gkd", "tkd", "fdkd", "rdkd"), "scenario.steps": (1, 5)},
    skip=(),
    rows="method.name",
    columns="scenario.steps",
    flatness=False,
    targets=(),
)


def two(**changes: Any) -> Experiment:
    """Two methods, two seeds and so two bases."""
    grid = {"method.name": ("gkd", "rdkd"), "seed": (1, 2)}
    return dataclasses.replace(FOUR, **{"grid": grid, **changes})


def test_each_point_becomes_the_run_that_a_user_would_have_typed(tmp_path: Path) -> None:
    changes = {"data": {"source": "cifar100", "dir": "sets"}, "memory": {"total": 90}}
    sweep = plan(FOUR, tmp_path, changes, scale=0.1)
    assert [job.label for job in sweep.jobs][:3] == ["gkd steps=1", "gkd steps=5", "tkd steps=1"]
    job = sweep.jobs[-1]
    typed = {
        "data": {"source": "cifar100", "dir": "sets"},
        "memory": {"total": 90},
        "method": {"name": "rdkd"},
        "scenario": {"steps": 5},
        "epochs": 0.1,
    }
    assert resolve(job.tree) == resolve(typed)
    assert job.folder == run_folder(resolve(typed), tmp_path)


def test_what_is_usual_follows_the_point(tmp_path: Path) -> None:
    """Settings that nobody gave depend on the method."""
    sweep = plan(two(grid={"method.name": ("rdkd", "podnet", "gkd-adaptive")}), tmp_path)
    networks = [resolve(job.tree).network for job in sweep.jobs]
    assert networks == ["resnet8", "podnet14", "resnet8"]
    weights = [resolve(job.tree).method.options.lambda_base for job in sweep.jobs]
    assert weights[0] != weights[2]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"scenario.steps": (1, 5)}, True),
        ({"method.name": ("finetune", "rdkd-adaptive", "gkd")}, True),
        ({"memory.per_class": (5, 10)}, True),
        ({"method.options.temperature": (2.0, 4.0)}, True),
        ({"seed": (1, 2)}, False),
        ({"scenario.order": (1, 2)}, False),
        ({"method.name": ("gkd", "ucir")}, False),
        ({"scenario.base": (4, 5)}, False),
        ({"training.base.lr": (0.1, 0.2)}, False),
        ({"training.increment.lr": (0.1, 0.2)}, True),
    ],
)
def test_runs_share_a_base_if_they_agree_in_it(
    changes: dict[str, Any], same: bool, tmp_path: Path
) -> None:
    jobs = plan(two(grid=changes), tmp_path).jobs
    assert len({job.base_key for job in jobs}) == (1 if same else len(jobs))


def test_equal_tasks_make_other_bases(tmp_path: Path) -> None:
    grid: dict[str, Any] = {"scenario.equal": (True,), "scenario.steps": (1, 4)}
    assert len({job.base_key for job in plan(two(grid=grid), tmp_path).jobs}) == 2


@pytest.mark.parametrize(("before", "after"), [(None, 0.1), (0.5, 0.05), ("50%", 0.05)])
def test_a_scale_shortens_in_proportion(before: Any, after: float) -> None:
    tree = {} if before is None else {"epochs": before}
    assert scaled(tree, 0.1)["epochs"] == pytest.approx(after)
    whole = resolve(scaled(tree, 0.1 / after)).epochs
    assert whole == pytest.approx(1.0)
    assert isinstance(whole, float)  # a share, not one epoch


def test_a_number_of_epochs_is_no_share_of_schedules_that_the_file_gives(tmp_path: Path) -> None:
    schedules = {"base": {"epochs": 100}, "increment": {"epochs": 50}}
    experiment = two(settings={"training": schedules})
    axis = experiment.with_axes(["epochs=2.0"])
    for sweep in (plan(experiment, tmp_path, {"epochs": 2.0}), plan(axis, tmp_path)):
        again = sweep.job(sweep.jobs[0].point)
        for job in (again, *sweep.jobs):
            assert resolve(job.tree).schedules().base.epochs == 2
    for text in ("1.0x", "100%"):
        (job, *_) = plan(two(), tmp_path, {"epochs": text}).jobs
        assert isinstance(resolve(job.tree).epochs, float)


def test_what_cannot_be_planned_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epochs = 3 is a number of epochs"):
        plan(FOUR, tmp_path, {"epochs": 3}, scale=0.1)
    with pytest.raises(ValueError, match="a scale must be a number above 0"):
        plan(FOUR, tmp_path, scale=0.0)
    with pytest.raises(ValueError, match=r"method\.name is an axis of four; .* --grid"):
        plan(FOUR, tmp_path, {"method": {"name": "gkd"}})
    for section, name, value in (("scenario", "increment", 1), ("scenario", "tasks", [4, 6])):
        with pytest.raises(ValueError, match=rf"{name} has no effect on four, .* scenario\.steps"):
            plan(FOUR, tmp_path, {section: {name: value}})
    sizes = two(grid={"method.name": ("gkd",), "memory.per_class": (5, 10)})
    with pytest.raises(ValueError, match=r"memory\.total has no effect on four, .*per_class"):
        plan(sizes, tmp_path, {"memory": {"total": 90}})
    assert len(plan(sizes, tmp_path, {"memory": {"total": None}}).jobs) == 2
    either = dataclasses.replace(sizes, grid={**sizes.grid, "memory.per_class": (None, 5)})
    jobs = plan(either, tmp_path, {"memory": {"total": 90}}).jobs
    assert [resolve(job.tree).memory.total for job in jobs] == [90, None]
    with pytest.raises(ValueError, match=r"four, gkd stepz=1: .*did you mean scenario\.steps\?"):
        plan(two(grid={"method.name": ("gkd",), "scenario.stepz": (1,)}), tmp_path)
    with pytest.raises(ValueError, match="one device for each run"):
        plan(FOUR, tmp_path, {"engine": {"devices": 2}})


def test_runs_that_the_data_has_no_classes_for_are_left_out(tmp_path: Path) -> None:
    """Digits has five classes after the base, CIFAR-100 fifty; a hub's data is not known yet."""
    experiment = two(grid={"method.name": ("gkd",), "scenario.steps": (5, 10)})
    sweep = plan(experiment, tmp_path)
    assert [job.label for job in sweep.jobs] == ["gkd steps=5"]
    (left_out,) = sweep.impossible
    assert (left_out.label, left_out.refused) == ("gkd steps=10", False)
    assert "5 classes after the base of 5 can't be divided into 10 equal steps" in left_out.reason
    for source in ("cifar100", "hub:mine", "folder:nowhere"):
        sweep = plan(experiment, tmp_path, {"data": {"source": source}})
        assert (len(sweep.jobs), sweep.impossible) == (2, ())
    with pytest.raises(ValueError, match=r"into 3 equal steps.* Impossible runs besides: 1;"):
        plan(experiment.with_axes(["scenario.steps=3,7"]), tmp_path)


def test_all_wrong_settings_are_listed_if_nothing_is_to_be_run(tmp_path: Path) -> None:
    experiment = two(grid={"method.name": ("gkd", "rdkdd"), "scenario.steps": (5, 10)})
    with pytest.raises(ValueError, match=r"rdkdd.*did you mean rdkd"):
        plan(experiment, tmp_path)
    sweep = plan(experiment, tmp_path, only_list=True)
    assert [job.label for job in sweep.jobs] == ["gkd steps=5"]
    refused = {each.label: each.refused for each in sweep.impossible}
    assert refused == {"gkd steps=10": False, "rdkdd steps=5": True, "rdkdd steps=10": True}


def test_a_point_that_is_impossible_now_replaces_its_failure(tmp_path: Path) -> None:
    experiment = two(grid={"method.name": ("gkd",), "scenario.steps": (5, 10)})
    sweep = plan(experiment, tmp_path)
    failed = {"method.name": "gkd", "scenario.steps": 10}
    earlier = {"folder": "../../old", "point": failed, "state": "failed", "reason": "no"}
    sweep.folder.mkdir(parents=True)
    (sweep.folder / "runs.json").write_text(json.dumps({"runs": [earlier]}))
    content = SweepRecord(sweep, lambda job: False).content()
    assert [run["point"]["scenario.steps"] for run in content["runs"]] == [5]
    assert [each["point"] for each in content["left_out"]] == [failed]
    other = plan(experiment.with_axes(["scenario.steps=1"]), tmp_path)
    (other.folder / "runs.json").write_text(json.dumps(content))
    assert SweepRecord(other, lambda job: False).content()["left_out"] == content["left_out"]


def test_what_makes_other_numbers_makes_another_name(tmp_path: Path) -> None:
    def name(experiment: Experiment = FOUR, scale: float | None = None, **data: Any) -> str:
        changes = {"data": data} if data else {}
        return plan(experiment, tmp_path, changes, scale).folder.name

    assert name() == "four"
    assert name(two()) == "four"
    assert name(dir="elsewhere") == "four"
    assert name(scale=0.1) == "four-at-0.1"
    few, fewer = name(per_class=10), name(per_class=5)
    assert len({"four", few, fewer}) == 3
    assert name(scale=0.1, per_class=10) == few.replace("four-", "four-at-0.1-")
    # So that the path doesn't matter.
    assert name(per_class=10, dir="elsewhere") == few


def test_a_compression_is_planned_by_its_own_settings(tmp_path: Path) -> None:
    grid = {"method": ("kd", "rdkd"), "student": ("resnet8",)}
    jobs = plan(two(kind="compression", grid=grid), tmp_path, scale=0.1).jobs
    assert [job.folder.name.rpartition("-")[0] for job in jobs] == ["compress-kd", "compress-rdkd"]
    assert jobs[0].base_key == jobs[1].base_key
    assert jobs[0].tree["epochs"] == 0.1


def test_one_run_of_each_base_comes_first(tmp_path: Path) -> None:
    jobs = plan(two(), tmp_path).jobs
    order = JobQueue(jobs)
    first, second = order.next(), order.next()
    assert first is not None
    assert second is not None
    assert [first.label, second.label] == ["gkd seed=1", "gkd seed=2"]
    assert order.next() is None
    order.note(second, JobProgress("task 1/6"))
    assert order.next() is None
    order.note(second, JobProgress("task 2/6", base_done=True))
    third = order.next()
    assert third is not None
    assert third.label == "rdkd seed=2"
    assert order.next() is None
    # A base that could not be trained is tried by the next run that needs it.
    order.note(first, JobFailed("no"))
    fourth = order.next()
    assert fourth is not None
    assert fourth.label == "rdkd seed=1"
    assert order.next() is None
    assert order.running == [second, third, fourth]


def test_a_student_that_learns_alone_does_not_stand_for_the_teacher(tmp_path: Path) -> None:
    grid = {"method": ("alone", "kd", "rdkd")}
    order = JobQueue(plan(two(kind="compression", grid=grid), tmp_path).jobs)
    first, second = order.next(), order.next()
    assert first is not None
    assert second is not None
    assert [first.label, second.label] == ["alone", "kd"]
    order.note(first, JobProgress("begins", base_done=True))
    order.note(first, JobDone())
    assert order.next() is None  # the teacher isn't trained
    order.note(second, JobProgress("task 1/2", base_done=True))
    third = order.next()
    assert third is not None
    assert third.label == "rdkd"


class Inline:
    """Does one job at a time, here, when events are asked for."""

    free: bool = True

    def __init__(self, **outcomes: Any) -> None:
        self.outcomes = outcomes
        self.started: list[SweepJob] = []
        self.stopped = False

    def start(self, job: SweepJob) -> None:
        self.started.append(job)
        self.free = False

    def events(self, seconds: float) -> Iterator[tuple[SweepJob, JobEvent]]:
        if self.free:
            return
        told: list[JobEvent] = []
        done = run_job(self.work, self.started[-1], Told(told, self))
        self.free = True
        for each in (*told, done):
            yield self.started[-1], each

    def work(self, job: SweepJob, line: JobChannel) -> None:
        line.send(JobProgress("task 1/2", 0.5, base_done=True))
        outcome = self.outcomes.get(job.point["method.name"])
        if outcome is not None:
            raise outcome
        job.folder.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        self.stopped = True

    def stop_job(self, job: SweepJob) -> None:
        raise AssertionError("nothing is pruned without a search")

    def close(self) -> None:
        """Nothing is left to end."""


class Told:
    def __init__(self, told: list[JobEvent], pool: Inline) -> None:
        self.told, self.pool = told, pool

    def send(self, event: JobEvent) -> None:
        self.told.append(event)

    def stop(self) -> bool:
        return self.pool.stopped


def made(job: SweepJob) -> bool:
    return job.folder.exists()


def record(sweep: SweepPlan) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((sweep.folder / "runs.json").read_text("utf-8"))
    return content


def states(sweep: SweepPlan) -> dict[str, tuple[str, str | None]]:
    runs = record(sweep)["runs"]
    return {label(run["point"]): (run["state"], run["reason"]) for run in runs}


def test_what_fails_is_written_down_and_tried_again(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path)
    pool = Inline(rdkd=ValueError("no room."))
    assert carry_out(SweepRecord(sweep, made), pool, SweepObserver())
    assert states(sweep) == {
        "gkd seed=1": ("finished", None),
        "gkd seed=2": ("finished", None),
        "rdkd seed=1": ("failed", "no room."),
        "rdkd seed=2": ("failed", "no room."),
    }
    again = Inline()
    record = SweepRecord(sweep, made)
    assert [job.label for job in record.unfinished()] == ["rdkd seed=1", "rdkd seed=2"]
    assert carry_out(record, again, SweepObserver())
    assert [job.label for job in again.started] == ["rdkd seed=1", "rdkd seed=2"]
    assert set(states(sweep).values()) == {("finished", None)}


def test_where_something_unforeseen_happened_is_kept(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path)
    carry_out(SweepRecord(sweep, made), Inline(gkd=ZeroDivisionError("by zero")), SweepObserver())
    assert states(sweep)["gkd seed=1"] == ("failed", "ZeroDivisionError: by zero")
    file = sweep.folder / "failures" / f"{sweep.jobs[0].folder.name}.txt"
    assert "in work\n" in file.read_text()


class Impatient(SweepObserver):
    """Stops when the second job has begun."""

    def __init__(self) -> None:
        self.jobs = 0
        self.ends: list[JobEvent] = []

    def job_started(self, job: SweepJob) -> None:
        self.jobs += 1

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        if not isinstance(event, JobProgress):
            self.ends.append(event)

    def stop(self) -> bool:
        return self.jobs == 2


def test_a_sweep_that_is_stopped_leaves_the_rest_waiting(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path)
    pool, observer = Inline(), Impatient()
    assert not carry_out(SweepRecord(sweep, made), pool, observer)
    assert pool.stopped
    assert [state for state, _ in states(sweep).values()].count("waiting") == 2
    assert observer.ends == [JobDone(), JobDone()]


def test_a_job_that_stops_by_itself_has_failed(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path)
    observer = Impatient()
    observer.jobs = 100
    assert carry_out(SweepRecord(sweep, made), Inline(gkd=Stopped()), observer)
    assert observer.ends[0] == JobStopped()
    state, reason = states(sweep)["gkd seed=1"]
    assert state == "failed"
    assert reason is not None
    assert "asked to stop" in reason


def test_the_record_keeps_what_other_calls_did(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path)
    carry_out(SweepRecord(sweep, made), Inline(), SweepObserver())
    first = record(sweep)
    more = plan(two().with_axes(["seed=2,3"]), tmp_path)
    assert more.folder == sweep.folder
    pool = Inline()
    carry_out(SweepRecord(more, made), pool, SweepObserver())
    assert [job.label for job in pool.started] == ["gkd seed=3", "rdkd seed=3"]
    labels = ["gkd seed=2", "gkd seed=3", "rdkd seed=2", "rdkd seed=3", "gkd seed=1", "rdkd seed=1"]
    assert list(states(more)) == labels
    second = record(more)
    assert second["seconds"] > first["seconds"] > 0
    by_folder = {run["folder"]: run for run in second["runs"]}
    for run in first["runs"]:
        assert by_folder[run["folder"]] == run
        assert (sweep.folder / run["folder"]).resolve().parent == tmp_path


def test_a_run_that_was_killed_does_not_run_for_ever(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path)
    before = SweepRecord(sweep, made)
    before.set(sweep.jobs[0], "running")  # and then the process is killed
    SweepRecord(plan(two().with_axes(["seed=2"]), tmp_path), made).write()
    assert states(sweep)["gkd seed=1"] == ("waiting", None)


def test_a_record_that_is_cut_off_is_written_anew(tmp_path: Path) -> None:
    sweep = plan(two(), tmp_path, {"data": {"per_class": 3}}, scale=0.5)
    sweep.folder.mkdir(parents=True)
    (sweep.folder / "runs.json").write_text('{"runs": [')
    SweepRecord(sweep, made).write()
    content = record(sweep)
    assert (content["scale"], content["settings"]) == (0.5, {"data": {"per_class": 3}})
    assert len(content["runs"]) == 4


def test_only_one_process_works_on_a_sweep(tmp_path: Path) -> None:
    sweep = plan(two(text="first"), tmp_path)
    with (
        sweep_folder(sweep),
        pytest.raises(ValueError, match="Another process is working on"),
        sweep_folder(plan(two(text="second"), tmp_path)),
    ):
        pass
    assert read_sealed_text(sweep.folder / "experiment.toml", 9999) == "first"


def test_other_settings_do_not_go_into_the_same_table(tmp_path: Path) -> None:
    text = (
        'title = "a"\nabout = "b"\n[settings]\nseed = {}\n[grid]\n"method.name" = ["gkd"]\n'
        '[table]\nrows = "method.name"\ncolumns = "method.name"\n'
    )
    for seed in (1, 2):
        grid = {"method.name": ("gkd",)}
        experiment = two(settings={"seed": seed}, grid=grid, text=text.format(seed))
        sweep = plan(experiment, tmp_path)
        if seed == 1:
            with sweep_folder(sweep):
                continue
        with (
            pytest.raises(ValueError, match="has other settings than four has now"),
            sweep_folder(sweep),
        ):
            pass
    file = tmp_path / "sweeps" / "four" / "experiment.toml"
    assert read_sealed_text(file, 9999) == text.format(1)


def test_a_sweep_that_picks_has_a_record_of_its_own(tmp_path: Path) -> None:
    grid = {"method.name": ("gkd",), "scenario.steps": (1,), "memory.per_class": (5, 10)}
    plain = two(grid=grid, settings={"data": {"source": "digits", "validation": 0.1}})
    folders = [
        plan(made, tmp_path).folder
        for made in (
            plain,
            plain.with_pick(["memory.per_class"]),
            plain.with_pick(["memory.per_class"], tasks=2),
        )
    ]
    assert folders[0].name == "four"
    assert len({*folders}) == 3
