from pathlib import Path

import pytest

from densekd.config.schema import as_toml, as_tree, resolve
from densekd.config.settings_tree import flat, override
from densekd.files import write_atomically
from densekd.reports.labels import (
    FILE_KEY,
    FlatSettings,
    Protocol,
    file_name_part,
    method_labels,
    natural_order,
    run_labels,
)


def settings(*assignments: str) -> FlatSettings:
    return flat(as_tree(resolve(override({}, assignments))))


def labels(*several: FlatSettings) -> list[str]:
    return method_labels([(each["method.name"], Protocol.of(each), each) for each in several])


@pytest.mark.parametrize(
    ("assignments", "label"),
    [
        ([], "digits · T = 5 · 20 exemplars a class"),
        (["epochs=0.1"], "digits · T = 5 · 20 exemplars a class · 10 % of the epochs"),
        (
            ["data.source=folder:photos"],
            "folder:photos, 224 pixels · T = 5 · 20 exemplars a class",
        ),
        (
            ["data.source=hub:x", "data.image_column=i", "data.label_column=fine"],
            "hub:x, images in i, labels in fine · T = 5 · 20 exemplars a class",
        ),
        (["epochs=1x"], "digits · T = 5 · 20 exemplars a class"),
        (["epochs=1"], "digits · T = 5 · 20 exemplars a class · shortened to 1 epoch"),
        (["epochs=4"], "digits · T = 5 · 20 exemplars a class · shortened to 4 epochs"),
        (["memory.total=200"], "digits · T = 5 · 200 exemplars"),
        (["scenario.equal=true", "scenario.steps=4"], "digits · T = 4, equal tasks · 20 exemplars"),
        (["scenario.increment=1", "scenario.base=4"], "digits · 1 a task after 4 classes · 20 ex"),
        (["data.per_class=9", "memory.per_class=1"], "digits, 9 images a class · T = 5 · 1 exempl"),
    ],
)
def test_a_protocol_says_what_runs_must_share(assignments: list[str], label: str) -> None:
    assert Protocol.of(settings(*assignments)).label.startswith(label)


def test_what_is_drawn_and_how_it_is_learned_are_no_part_of_a_protocol() -> None:
    plain = Protocol.of(settings())
    for other in ("seed=3", "scenario.order=3", "method.name=bic", "network=resnet14"):
        assert Protocol.of(settings(other)) == plain


def test_a_method_is_called_by_what_distinguishes_it_in_its_protocol() -> None:
    several = [
        settings("method.options.temperature=2.0", "seed=1"),
        settings("method.options.temperature=4.0", "seed=2", "scenario.order=5"),
        settings("method.options.temperature=4.0", "memory.per_class=5"),
        settings("method.name=bic"),
    ]
    hot, cold = "rdkd, temperature 4.0", "rdkd, temperature 2.0"
    assert labels(*several) == [cold, hot, "rdkd", "bic"]


def test_what_follows_from_other_settings_is_left_out_unless_it_is_all_there_is() -> None:
    by_rule, constant = settings(), settings("method.options.lambda_exponent=0.0")
    assert by_rule["method.options.lambda_base"] != constant["method.options.lambda_base"]
    assert labels(by_rule, constant) == [
        f"rdkd, lambda_exponent {each['method.options.lambda_exponent']}"
        for each in (by_rule, constant)
    ]
    weak = settings("method.options.lambda_base=0.1")
    assert labels(by_rule, weak)[1] == "rdkd, lambda_base 0.1"


def test_runs_are_called_by_all_that_differs() -> None:
    several = [settings("seed=1"), settings("seed=2", "method.name=ucir")]
    first, second = run_labels(several)
    assert first.startswith("rdkd, seed 1")
    assert second.startswith("ucir, seed 2")
    assert run_labels([settings()]) == ["rdkd"]


def test_branches_of_several_seeds_are_one_method(tmp_path: Path) -> None:
    def branch(seed: int, parent: str) -> FlatSettings:
        folder = tmp_path / f"{parent}{seed}"
        config = resolve({"seed": seed, "method": {"name": parent}})
        write_atomically(folder / "config.toml", as_toml(config))
        return settings(f"start={folder}@2", "method.name=gkd")

    of_rdkd = [branch(seed, "rdkd") for seed in (1, 2, 3)]
    assert labels(*of_rdkd) == ["gkd"] * 3
    # The other method begins from other networks.
    assert len(set(labels(*of_rdkd, branch(1, "tkd")))) > 1


def test_runs_of_other_files_are_other_methods() -> None:
    def run(**files: str) -> FlatSettings:
        return {**settings(), **{f"{FILE_KEY}{name}.py": value for name, value in files.items()}}

    assert labels(run(mine="a"), run(mine="b")) == ["rdkd, mine.py a", "rdkd, mine.py b"]
    assert run_labels([run(mine="a"), run(mine="b")]) == ["rdkd, mine.py a", "rdkd, mine.py b"]
    # A version that wrote down no checksum of the data says nothing about them.
    assert labels(run(), run(data="a"), run(data="a")) == ["rdkd"] * 3


def test_runs_of_the_same_label_are_told_apart_by_settings_that_one_has(tmp_path: Path) -> None:
    write_atomically(tmp_path / "config.toml", as_toml(resolve({})))
    several = [settings("method.name=gkd"), settings("method.name=gkd", f"start={tmp_path}@2")]
    assert run_labels(several) == ["gkd", "gkd, after 2"]


def test_numbers_are_sorted_as_such() -> None:
    words = ["x²", "20 a", "T = 5", "5 a", "T = 10", "1993"]
    assert sorted(words, key=natural_order) == ["5 a", "20 a", "1993", "T = 5", "T = 10", "x²"]
    long = ["2" * 5000, "1" * 5000, "007", "10", "0"]
    assert sorted(long, key=natural_order) == ["0", "007", "10", "1" * 5000, "2" * 5000]


def test_a_slug_can_be_the_name_of_a_file() -> None:
    assert file_name_part("folder:/a b/<c> · T = 5 · 10 %") == "folder-a-b-c-t-5-10-percent"
    assert file_name_part("../..") == ""
