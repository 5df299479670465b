from pathlib import Path

import pytest

from densekd.config.keywords import RUN_KEYS, make_config, settings_of
from densekd.config.schema import as_toml, as_tree, resolve
from densekd.config.settings_tree import flat


def test_every_keyword_stands_for_a_setting() -> None:
    assert {*RUN_KEYS.values()} <= {*flat(as_tree(resolve({})))}


def test_keywords_become_settings_and_none_is_left_out() -> None:
    tree = settings_of({"data": "digits", "memory": 3, "seed": None})
    assert tree == {"data": {"source": "digits"}, "memory": {"per_class": 3}}


def test_a_misspelt_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="'metod' is not a keyword; there are data, "):
        settings_of({"metod": "gkd"})


def test_file_config_and_mapping_give_the_same(tmp_path: Path) -> None:
    tree = {"method": {"name": "gkd"}, "scenario": {"increment": 2}}
    config, file = resolve(tree), tmp_path / "gkd.toml"
    file.write_text(as_toml(config))
    assert make_config(tree) == make_config(config) == make_config(file) == config
    assert make_config(str(file)) == config


def test_keywords_win_over_the_file_and_overrides_over_both() -> None:
    tree = {"seed": 1, "memory": {"per_class": 5}, "scenario": {"increment": 2}}
    config = make_config(tree, {"seed": 2, "memory_total": 100, "steps": 3}, {"seed": 3})
    assert (config.seed, config.memory.per_class, config.memory.total) == (3, None, 100)
    assert (config.scenario.steps, config.scenario.increment) == (3, None)
    assert make_config(tree, {"seed": 2}, ["seed=4"]).seed == 4
    assert make_config(tree, {"seed": 2}, "seed=4").seed == 4


@pytest.mark.parametrize(
    ("method", "key", "unused"),
    [
        ("finetune", "method.options.lambda_base", True),
        ("joint", "method.options.streams", True),
        ("finetune", "method.options.head", False),
        ("icarl", "method.options.temperature", True),
        ("icarl+rdkd", "method.options.temperature", False),
        ("gkd", "method.options.lambda_base", False),
        ("gkd", "method.options.vectors", True),
        ("icarl+gkd", "method.options.size_ratio", True),
        ("rdkd-adaptive", "method.options.similarity", False),
        ("icarl+rdkd-adaptive", "method.options.vectors", False),
        ("rdkd-adaptive", "method.options.lambda_exponent", True),
        ("rdkd", "method.options.lambda_exponent", False),
        ("rdkd", "method.options.streams", False),
        ("icarl+rdkd", "method.options.streams", True),
        ("icarl+rdkd-adaptive", "method.options.head", True),
        ("gkd", "training.finish", True),
        ("icarl", "training.finish", True),
        ("ucir", "training.finish", False),
        ("podnet", "training.finish", False),
    ],
)
def test_settings_without_effect_are_told(
    method: str, key: str, unused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"training.finish": {"epochs": 3}, "method.options.streams": "merged"}
    values |= {"method.options.head": "linear", "method.options.similarity": "rescaled"}
    values |= {"method.options.size_ratio": "all", "method.options.vectors": "recomputed"}
    make_config({"method": {"name": method}}, changes={key: values.get(key, 4.0)})
    told = [f"{key} has no effect on {method}."] if unused else []
    assert [record.getMessage() for record in caplog.records] == told


def test_nobody_asked_for_what_a_complete_file_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(as_toml(resolve({"method": {"name": "finetune"}})))
    make_config(file, {"seed": 3})
    assert caplog.records == []
    make_config(file, changes=["method.options.lambda_base=4"])
    assert "lambda_base has no effect on finetune" in caplog.text


def test_a_whole_number_is_not_taken_for_a_share_of_a_complete_file(tmp_path: Path) -> None:
    file, text = tmp_path / "config.toml", as_toml(resolve({"epochs": 5}))
    file.write_text(text.replace("epochs = 5\n", "epochs = 10.0\n", 1))
    with pytest.raises(ValueError, match=r'epochs = 10\.0 in .*; write 10 for epochs, or "10\.0x"'):
        make_config(file)
    file.write_text(text.replace("epochs = 5\n", 'epochs = "10.0x"\n', 1))
    config = make_config(file)
    assert config.epochs == 10.0
    assert make_config(as_tree(config)) == config
    for changed in (
        make_config(file, {"epochs": 10.0}),
        make_config(file, changes={"epochs": 10.0}),
    ):
        assert changed.schedules().base.epochs == 10


@pytest.mark.parametrize("epochs", ["1x", "1.0x", "100%", "150%", "2x"])
def test_a_share_of_all_epochs_is_no_number_of_them(epochs: str) -> None:
    made = make_config(None, {"epochs": epochs})
    assert isinstance(made.epochs, float)
    assert make_config(made, {"epochs": epochs}) == made
