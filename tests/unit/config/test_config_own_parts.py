"""The parts of one's own that settings name, the record of their code, and consent."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from densekd.compression.config import resolve_compression
from densekd.config.digests import base_settings, result_settings
from densekd.config.file_checksums import (
    check_code,
    check_files,
    load_trusted,
    named_files,
    write_code,
    write_files,
)
from densekd.config.own_parts import own_references
from densekd.config.schema import as_toml, resolve
from densekd.config.settings_tree import read_toml
from densekd.data.sources import load
from densekd.files import read_sealed_json
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.parts import OwnPartError, load_files, short_name

from support.class_folders import fill_folder

FILE = """
from densekd.methods.method import Method, Phase
from densekd.methods.terms import CrossEntropy

def plain(schedules, weight=1.0):
    return Method("plain", "linear", {"ce": CrossEntropy(["merged"], "all")},
        base=(Phase("train", schedules.base),), increment=(Phase("train", schedules.increment),),
        streams="merged")
value = None
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    return tmp_path


def own(**more: Any) -> dict[str, Any]:
    return {"method": {"name": "mine.py:plain"}, **more}


def test_all_parts_are_found() -> None:
    config = resolve(
        {
            "network": "mine.py:tiny",
            "data": {"source": "mine.py:flowers"},
            "scenario": {"order": "mine.py:order"},
            "memory": {"selection": "mine.py:policy"},
            "method": {"name": "mine.py:eeil+rdkd"},
            "metrics": ["mine.py:ece"],
        }
    )
    assert sorted(name.partition(":")[2] for name in own_references(config).values()) == sorted(
        ["tiny", "flowers", "order", "policy", "eeil", "ece"]
    )
    assert own_references(resolve({})) == {}


def test_settings_that_name_code_run_nothing(tmp_path: Path) -> None:
    Path("mine.py").write_text("open('ran', 'w')")
    config = resolve(own(network="mine.py:tiny", metrics=["mine.py:ece"]))
    (tmp_path / "config.toml").write_text(as_toml(config))
    assert resolve(read_toml(tmp_path / "config.toml")) == config
    assert not Path("ran").exists()


def test_parameters_are_settings_and_change_the_name_of_a_run() -> None:
    one = resolve(own(method={"name": "mine.py:plain", "params": {"weight": 0.5, "kind": "a"}}))
    other = resolve(own(method={"name": "mine.py:plain", "params": {"weight": 0.6, "kind": "a"}}))
    assert one.method.params == {"weight": 0.5, "kind": "a"}
    assert result_settings(one) != result_settings(other)
    with pytest.raises(ValueError, match="params have no meaning for rdkd"):
        resolve({"method": {"params": {"weight": 0.5}}})
    with pytest.raises(ValueError, match=r"method\.params must be a table of numbers and texts"):
        resolve(own(method={"name": "mine.py:plain", "params": {"weight": [1]}}))


def test_what_is_not_given_leaves_digests_as_they_were() -> None:
    tree = result_settings(resolve({}))
    assert "metrics" not in tree
    assert "params" not in tree["method"]
    assert "code" not in base_settings(resolve({}), 5)


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"metrics": ["ece"]}, "metrics must be .*mine.py:ece"),
        ({"memory": {"selection": "best"}}, "'random', 'herding', 'greedy' or a function such as"),
        ({"method": {"name": "mine.py:plain+none"}}, "no distillation 'none'"),
    ],
)
def test_what_is_no_reference_is_refused(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        resolve(tree)


def test_a_changed_file_never_shares_a_base() -> None:
    config = resolve(own())
    load_files(["mine.py:plain"])
    before = base_settings(config, 5)
    assert base_settings(config, 5) == before
    Path("mine.py").write_text(FILE + "\n")
    load_files(["mine.py:plain"])
    assert base_settings(config, 5) != before


def test_a_method_of_ones_own_shares_no_base_with_others() -> None:
    load_files(["mine.py:plain"])
    mine, ours = (resolve({"method": {"name": name}}) for name in ("mine.py:plain", "rdkd"))
    assert base_settings(mine, 5)["method"] != base_settings(ours, 5)["method"]


def test_the_code_of_a_folder_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_code(folder, {})
    assert not (folder / "code.json").exists()
    check_code(folder, {"mine.py": "1"})  # nothing was recorded
    write_code(folder, {"mine.py": "1"})
    assert read_sealed_json(folder / "code.json") == {"mine.py": "1"}
    check_code(folder, {"mine.py": "1"})
    with pytest.raises(OwnPartError, match=r"mine.py has changed .* delete .*run, or choose"):
        check_code(folder, {"mine.py": "2"})
    write_code(folder, {"mine.py": "1", "order.txt": "3"})
    with pytest.raises(OwnPartError, match=r"order.txt has changed"):
        check_code(folder, {"order.txt": "4"})
    (folder / "code.json").write_text("{")
    with pytest.raises(ValueError, match=r"code.json can't be read"):
        check_code(folder, {"mine.py": "1"})


def test_the_files_that_settings_name_are_found() -> None:
    data = {"source": "imagenet:x", "classes_file": "classes.txt"}
    ordered = resolve({"data": data, "scenario": {"order": "order.txt"}})
    assert named_files(ordered) == ["classes.txt", "order.txt", "imagenet:x"]
    divided = {"tasks": Path("tasks.txt"), "order": "natural"}
    assert named_files(resolve({"scenario": divided})) == ["tasks.txt"]
    assert named_files(resolve_compression({"order": "order.txt"})) == ["order.txt"]


def test_a_run_keeps_to_the_files_it_began_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    os.mkfifo("pipe")
    Path("tasks.txt").write_text("tasks")
    np.savez("images.npz", train_x=np.zeros(3))
    fill_folder(Path("photos/cat"), 2)
    files = ["tasks.txt", "npz:images.npz", "folder:photos", "pipe", "mine.py:order", "folder:x"]
    write_files(folder, files)
    begun = read_sealed_json(folder / "code.json")
    assert [*begun] == files[:3]
    check_files(folder, files)
    Path("tasks.txt").write_text("other")
    fill_folder(Path("photos/cat"), 3)
    np.savez("images.npz", train_x=np.ones(3))
    for file in files[:3]:
        with pytest.raises(OwnPartError, match=f"{file} has changed since this run began"):
            check_files(folder, [file])
    write_files(folder, files)  # the first checksums stay
    assert read_sealed_json(folder / "code.json") == begun
    shutil.rmtree("photos")
    check_files(folder, ["folder:photos"])  # a finished run doesn't need it


def test_the_code_of_a_folder_runs_only_with_consent(tmp_path: Path) -> None:
    config = resolve(own())
    with pytest.raises(OwnPartError, match=r"mine\.py:plain, which runs only if you agree"):
        load_trusted(config, tmp_path, False)
    load_trusted(config, tmp_path, True)
    load_trusted(resolve({}), tmp_path, False)


def test_python_values_become_references() -> None:
    images = np.zeros((8, 6, 6, 3), np.uint8)
    arrays = images, [0, 1] * 4, images, [0, 1] * 4

    def plain(schedules: Schedules) -> Any:
        return make_method("finetune", DenseOptions(), schedules)

    def ece(outputs: Any) -> float:
        return 0.0

    tree = {
        "network": nn.Linear(2, 3),
        "data": {"source": arrays},
        "scenario": {"order": sorted},
        "memory": {"selection": lambda features, count: range(count)},
        "method": {"name": plain},
        "metrics": [ece],
    }
    config = resolve(tree)
    found = own_references(config)
    assert {key: short_name(name) for key, name in found.items()} == {
        "network": "linear",
        "data.source": "data",
        "scenario.order": "sorted",
        "memory.selection": "lambda",
        "method.name": "plain",
        "metrics.0": "ece",
    }
    assert load(config.data.source).classes == ("0", "1")
    assert config.make_method().name == "finetune"
    assert resolve(tree) == config
    images[0] = 1
    assert resolve(tree).data.source != config.data.source


def test_a_method_and_a_folder_as_values(tmp_path: Path) -> None:
    method = make_method("gkd", DenseOptions(), Schedules(Schedule(20), Schedule(10)))
    config = resolve({"method": {"name": method}, "data": {"source": tmp_path}, "epochs": 0.5})
    assert config.data.source == f"folder:{tmp_path}"
    assert config.method.name.startswith("python:gkd-")
    assert config.make_method().base[0].schedule.epochs == 10
    whole = resolve({"method": {"name": method}, "epochs": 4})
    assert whole.make_method().increment[0].schedule.epochs == 2
