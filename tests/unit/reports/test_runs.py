import json
import os
import shutil
from pathlib import Path

import pytest

from densekd.compression.config import compression_folder, resolve_compression
from densekd.config.schema import as_toml, as_tree, resolve
from densekd.config.settings_tree import override
from densekd.files import write_sealed_text
from densekd.reports.groups import RunGroup, differences, group_compressions, group_runs
from densekd.reports.runs import find_runs
from densekd.runs.run import run_folder

from support.run_folders import rewrite, write_run, write_sweep

AVERAGE = "average_incremental_accuracy"


def only(out: Path) -> RunGroup:
    (found,), _ = group_runs(find_runs([out]).runs)
    return found


def test_runs_are_found_in_their_folder_and_in_that_of_all(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", "seed=1"), write_run(tmp_path / "b", "seed=2")
    (tmp_path / "a" / "bases" / "x").mkdir(parents=True)
    found = find_runs([tmp_path / "a", first, second, tmp_path / "b"])
    assert [run.folder for run in found.runs] == [first, second]


def test_a_sweep_is_found_by_a_path_without_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path)
    folder = write_sweep(tmp_path, "mine", "", {run: {"seed": 1}})
    for where, place in ((folder, "."), (folder.parent, "mine"), (folder / "..", "../sweeps/mine")):
        monkeypatch.chdir(where)
        assert [each.folder for each in find_runs([Path(place)]).runs] == [run]


def test_a_run_in_the_current_folder_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path)
    (folder / "inside").mkdir()
    for where, place in ((folder, "."), (folder / "inside", "..")):
        monkeypatch.chdir(where)
        (run,) = find_runs([Path(place)]).runs
        assert run.folder.name == folder.name


def test_nothing_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no run in .*; `densekd run` makes some\."):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match="There is no folder"):
        find_runs([tmp_path / "none"])


def test_an_unfinished_run_tells_how_far_it_is(tmp_path: Path) -> None:
    for tasks in (0, 2):
        folder = write_run(tmp_path / str(tasks), tasks=tasks)
        (run,) = find_runs([folder]).runs
        assert run.result is None
        assert run.progress == f"{tasks} of 6 tasks"
        assert run.measured(AVERAGE) is None
        assert len(run.steps) == tasks
    (run,) = find_runs(
        [write_run(tmp_path / "3", "scenario.increment=1", "scenario.base=9", tasks=0)]
    ).runs
    assert run.progress == "0 of ? tasks"


def test_a_result_that_was_cut_off_counts_as_unfinished(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "result.json").write_text('{"steps": [')
    (run,) = find_runs([folder]).runs
    assert run.progress == "0 of 6 tasks"


def test_a_run_of_another_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "seed=7")
    result = json.loads((folder / "result.json").read_text())
    result["config"]["method"]["options"]["no_longer_there"] = 1
    del result["versions"]
    rewrite(folder / "result.json", result)
    (run,) = find_runs([folder]).runs
    assert run.replicate == ("7", "1993")
    assert run.measured(AVERAGE) == result[AVERAGE]


def test_settings_that_are_new_have_their_usual_value(tmp_path: Path) -> None:
    old, new = write_run(tmp_path, "seed=1"), write_run(tmp_path, "seed=2")
    result = json.loads((old / "result.json").read_text())
    del result["config"]["method"]["options"]["temperature"]
    rewrite(old / "result.json", result)
    assert [run.folder for run in only(tmp_path).runs] == [old, new]


def test_a_compression_is_no_run(tmp_path: Path) -> None:
    result = {"kind": "compression", "method": "kd", "teacher": "a", "student": "b", "epochs": []}
    rewrite(tmp_path / "compress-kd" / "result.json", {**result, "accuracy": 0.5})
    found = find_runs([tmp_path])
    assert found.runs == ()
    (each,) = found.compressions
    assert (each.method, each.measured("accuracy")) == ("kd", 0.5)
    assert each.protocol.startswith("a → b")


def test_a_mean_is_over_seeds_and_orders_of_finished_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, f"seed={seed}") for seed in (1, 2)]
    folders.append(write_run(tmp_path, "seed=2", "scenario.order=5"))
    write_run(tmp_path, "seed=3", tasks=2)
    found = only(tmp_path)
    values = [json.loads((f / "result.json").read_text())[AVERAGE] for f in folders]
    summary = found.summary(AVERAGE)
    assert summary is not None
    assert summary.mean == pytest.approx(sum(values) / 3)
    assert summary.count == 3
    assert found.state == "3 of 4 finished"
    assert found.replicates == "2 seeds and 2 orders"


def test_a_run_that_repeats_another_is_left_out(tmp_path: Path) -> None:
    kept = write_run(tmp_path / "a", "seed=1")
    shutil.copytree(kept, tmp_path / "b" / kept.name)
    os.utime(kept / "result.json", (2e9, 2e9))
    write_run(tmp_path / "c", "seed=1", tasks=3)
    groups, repeated = group_runs(find_runs([tmp_path / name for name in "abc"]).runs)
    assert [run.folder for each in groups for run in each.all_runs] == [kept]
    assert len(repeated) == 2


def test_tasks_of_other_classes_are_like_another_order(tmp_path: Path) -> None:
    for tasks in ([["a", "b"], ["c", "d"]], [["a", "c"], ["b", "d"]]):
        config = resolve({"scenario": {"tasks": tasks}})
        write_sealed_text(run_folder(config, tmp_path) / "config.toml", as_toml(config))
    (group,), repeated = group_runs(find_runs([tmp_path]).runs)
    assert (len(group.all_runs), repeated) == (2, {})


def test_other_options_make_another_group(tmp_path: Path) -> None:
    write_run(tmp_path, "method.options.temperature=2.0")
    write_run(tmp_path, "method.options.temperature=4.0")
    write_run(tmp_path, "scenario.steps=1")
    groups, _ = group_runs(find_runs([tmp_path]).runs)
    assert sorted(each.method for each in groups) == [
        "rdkd",
        "rdkd, temperature 2.0",
        "rdkd, temperature 4.0",
    ]


def test_methods_are_paired_within_their_protocol(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path, "method.name=gkd", f"seed={seed}")
    for seed in (2, 3, 4):
        write_run(tmp_path, "method.name=rdkd", f"seed={seed}")
    write_run(tmp_path, "method.name=tkd", "seed=2", "scenario.steps=1")
    groups, _ = group_runs(find_runs([tmp_path]).runs)
    ((first, second, difference),) = differences(groups, AVERAGE)
    assert {first.method, second.method} == {"gkd", "rdkd"}
    values = [each.by_replicate(AVERAGE) for each in (first, second)]
    shared = [values[0][str(s), "1993"] - values[1][str(s), "1993"] for s in (2, 3)]
    assert difference.count == 2
    assert difference.mean == pytest.approx(sum(shared) / 2)


def write_compression(out: Path, *assignments: str) -> Path:
    config = resolve_compression(override({"method": "kd"}, assignments))
    folder = compression_folder(config, out)
    facts = {"kind": "compression", "epochs": [], "accuracy": 0.5, "config": as_tree(config)}
    names = {"method": config.method, "teacher": config.teacher, "student": config.student}
    rewrite(folder / "result.json", {**facts, **names})
    return folder


def test_a_mean_of_compressions_is_over_seeds_and_orders_too(tmp_path: Path) -> None:
    for assignments in (
        ("seed=1",),
        ("seed=2", "order=3"),
        ("options.temperature=2.0", "seed=1"),
        ("data.per_class=20",),
        ("student=resnet14",),
    ):
        folder = write_compression(tmp_path / "a", *assignments)
    shutil.copytree(folder, tmp_path / "b" / folder.name)
    found = group_compressions(find_runs([tmp_path / "a", tmp_path / "b"]).compressions)
    usual, small = "wrn-16-2 → resnet8 · digits", "wrn-16-2 → resnet14 · digits"
    assert {key: len(runs) for key, runs in found.items()} == {
        (small, "kd"): 1,
        (usual, "kd, temperature 2.0"): 1,
        (usual, "kd, temperature 4.0"): 2,
        (f"{usual}, 20 images a class", "kd"): 1,
    }


def test_compressions_by_different_teachers_are_shown_apart(tmp_path: Path) -> None:
    for teacher in ("short", "long"):
        write_compression(tmp_path, f"teacher_file={teacher}")
    methods = [method for _, method in group_compressions(find_runs([tmp_path]).compressions)]
    assert methods == ["kd, teacher_file long", "kd, teacher_file short"]
