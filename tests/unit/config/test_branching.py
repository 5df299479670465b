from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from densekd.config.branching import read_config
from densekd.config.digests import result_settings
from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import digest
from densekd.files import write_atomically
from densekd.methods.schedule import Schedule


def write_parent(folder: Path, **settings: Any) -> Config:
    config = resolve(settings)
    write_atomically(folder / "config.toml", as_toml(config))
    return config


def test_a_branch_has_its_parents_settings(tmp_path: Path) -> None:
    memory = {"total": 50, "selection": "greedy"}
    parent = write_parent(
        tmp_path, seed=7, memory=memory, scenario={"steps": 2}, epochs=3, network="resnet20"
    )
    branch = resolve({"start": f"{tmp_path}@2"})
    assert branch.start is not None
    assert (branch.start.run, branch.start.after) == (tmp_path, 2)
    assert branch.start.settings == digest(result_settings(parent))
    assert replace(branch, start=None) == parent
    assert branch.memory.per_class is None


def test_options_win_over_the_parent(tmp_path: Path) -> None:
    write_parent(tmp_path, memory={"total": 50}, method={"name": "rdkd"}, epochs=3)
    branch = resolve({"start": f"{tmp_path}@1", "memory": {"per_class": 5}, "epochs": 4})
    assert (branch.memory.per_class, branch.memory.total) == (5, None)
    assert branch.epochs == 4


@pytest.mark.parametrize("share", [0.5, 1.0, 1.5])
def test_a_share_of_the_epochs_is_inherited(share: float, tmp_path: Path) -> None:
    write_parent(tmp_path, epochs=f"{share}x")
    assert resolve({"start": f"{tmp_path}@1"}).epochs == share
    assert resolve({"start": f"{tmp_path}@1", "epochs": "1x"}).epochs == 1.0


def test_another_method_brings_its_defaults_but_keeps_what_was_set(tmp_path: Path) -> None:
    write_parent(
        tmp_path,
        data={"source": "cifar100"},
        method={"name": "podnet", "podnet": {"margin": 0.5}},
        training={"increment": {"lr": 0.123}},
    )
    branch = resolve({"start": f"{tmp_path}@1", "method": {"name": "afc"}})
    plain = resolve({"data": {"source": "cifar100"}, "method": {"name": "afc"}})
    assert branch.method == plain.method
    assert branch.training.base == plain.training.base
    assert branch.training.increment.lr == 0.123
    same = resolve({"start": f"{tmp_path}@1"})
    assert same.method.own.margin == 0.5


def test_the_network_stays_whatever_the_method_prefers(tmp_path: Path) -> None:
    parent = write_parent(tmp_path, data={"source": "cifar100"}, method={"name": "gkd"})
    branch = resolve({"start": f"{tmp_path}@1", "method": {"name": "podnet"}})
    assert branch.network == parent.network
    assert branch.training.finish is not None


def test_a_preset_is_not_taken_to_a_baseline(tmp_path: Path) -> None:
    write_parent(tmp_path, data={"source": "cifar100"}, training={"preset": "ccil"})
    same = resolve({"start": f"{tmp_path}@1", "method": {"name": "gkd"}})
    assert same.training.base == Schedule(120, 0.1, batch_size=100, weight_decay=5e-4)
    icarl = resolve({"start": f"{tmp_path}@1", "method": {"name": "icarl"}})
    assert icarl.training.preset == "paper"


def test_the_settings_of_a_branch_need_no_parent(tmp_path: Path) -> None:
    write_parent(tmp_path / "parent")
    branch = resolve({"start": f"{tmp_path / 'parent'}@2", "method": {"name": "gkd"}})
    write_atomically(tmp_path / "branch" / "config.toml", as_toml(branch))
    (tmp_path / "parent" / "config.toml").unlink()
    assert read_config(tmp_path / "branch") == branch
    with pytest.raises(ValueError, match=r"Can't go on from .*parent.*--config"):
        resolve({"start": f"{tmp_path / 'parent'}@2"})


def test_the_place_of_the_parent_does_not_matter(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "other"):
        write_parent(tmp_path / name)
        digests.add(digest(result_settings(resolve({"start": f"{tmp_path / name}@2"}))))
    assert len(digests) == 1
    write_parent(tmp_path / "third", seed=2)
    digests.add(digest(result_settings(resolve({"start": f"{tmp_path / 'third'}@2"}))))
    digests.add(digest(result_settings(resolve({"start": f"{tmp_path / 'one'}@1"}))))
    digests.add(digest(result_settings(resolve({}))))
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 2}, "seed is 1993 .* can't become 2"),
        ({"network": "resnet20"}, "network is resnet8 .* can't become resnet20"),
        ({"data": {"source": "cifar10"}}, "data.source is digits .* can't become cifar10"),
        ({"scenario": {"steps": 2}}, "scenario.steps is 5 .* can't become 2"),
    ],
)
def test_what_can_not_change(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write_parent(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        resolve({"start": f"{tmp_path}@2", **changes})


def test_where_the_data_is_may_change(tmp_path: Path) -> None:
    write_parent(tmp_path)
    branch = resolve({"start": f"{tmp_path}@2", "data": {"dir": "elsewhere"}})
    assert branch.data.dir == Path("elsewhere")


@pytest.mark.parametrize("start", ["runs/x", "@3", "runs/x@last", "runs/x@-1"])
def test_a_start_is_a_run_and_a_step(start: str) -> None:
    with pytest.raises(ValueError, match="RUN@STEP"):
        resolve({"start": start})


def test_the_first_step_is_1(tmp_path: Path) -> None:
    write_parent(tmp_path)
    with pytest.raises(ValueError, match=r"start\.after"):
        resolve({"start": f"{tmp_path}@0"})


def test_code_of_the_parent_runs_only_if_the_user_agrees(tmp_path: Path) -> None:
    write_parent(tmp_path, network="mine.py:tiny", metrics=["mine.py:ece"])
    start = f"{tmp_path}@1"
    with pytest.raises(ValueError, match=r"network of the parent is mine.py:tiny.*--trust-code"):
        resolve({"start": start})
    with pytest.raises(ValueError, match=r"metrics.0 of the parent is mine.py:ece"):
        resolve({"start": start, "network": "mine.py:tiny"})
    trusted = resolve({"start": start}, trust_code=True)
    named = {"network": "mine.py:tiny", "metrics": ["mine.py:ece"]}
    assert trusted == resolve({"start": start, **named})


def test_the_params_of_a_method_of_ones_own_stay_with_it(tmp_path: Path) -> None:
    write_parent(tmp_path, method={"name": "mine.py:eeil", "params": {"alpha": 0.5, "beta": 1}})
    same = resolve({"start": f"{tmp_path}@1"}, trust_code=True)
    assert same.method.params == {"alpha": 0.5, "beta": 1}
    changes = {"name": "mine.py:eeil+rdkd", "params": {"beta": 2}}
    combined = resolve({"start": f"{tmp_path}@1", "method": changes})
    assert combined.method.params == {"alpha": 0.5, "beta": 2}
    for name in ("rdkd", "mine.py:other"):
        assert resolve({"start": f"{tmp_path}@1", "method": {"name": name}}).method.params is None


def test_a_run_that_would_go_on_from_itself_is_damaged(tmp_path: Path) -> None:
    for start in (f'start = "{tmp_path}@1"', f'start = {{ run = "{tmp_path}", after = 1 }}'):
        write_atomically(tmp_path / "config.toml", f"{start}\n")
        with pytest.raises(ValueError, match=r"config\.toml is damaged: its start"):
            read_config(tmp_path)
