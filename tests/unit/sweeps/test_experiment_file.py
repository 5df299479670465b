import os
from pathlib import Path

import pytest

from densekd.config.settings_tree import flat, nested
from densekd.files import write_sealed_text
from densekd.sweeps.experiment_file import Target, label, read_experiment
from densekd.sweeps.library import LIBRARY

FULL = """
title = "Two methods"
about = "What they reach."
measure = "forgetting"
flatness = true
skip = [{ "method.name" = "tkd", "scenario.steps" = 5, seed = 2 }]

[settings]
data.source = "digits"
memory.per_class = 3

[grid]
"method.name" = ["gkd", "tkd"]
"scenario.steps" = [1, 5]
seed = [1, 2]

[table]
rows = "method.name"
columns = "scenario.steps"

[paper.where]
seed = 1

[paper.forgetting]
gkd = [1.5, nan]
tkd = [2, 3.25]

[paper.seconds]
gkd = 60
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def refused(folder: Path, text: str) -> str:
    file = written(folder, text)
    with pytest.raises(ValueError, match=r"mine\.toml: ") as caught:
        read_experiment(file)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence.removeprefix(f"{file}: ")


def test_a_file_is_read_in_full(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path, FULL))
    assert (experiment.name, experiment.title) == ("mine", "Two methods")
    assert experiment.about == "What they reach."
    assert (experiment.kind, experiment.measure) == ("runs", "forgetting")
    assert experiment.settings == {"data": {"source": "digits"}, "memory": {"per_class": 3}}
    grid = {"method.name": ("gkd", "tkd"), "scenario.steps": (1, 5), "seed": (1, 2)}
    assert experiment.grid == grid
    assert (experiment.rows, experiment.columns) == ("method.name", "scenario.steps")
    assert experiment.flatness


@pytest.mark.parametrize("figure", ["flatness", "curves"])
def test_files_for_earlier_versions_list_figures(figure: str, tmp_path: Path) -> None:
    text = FULL.replace("flatness = true", f'figures = ["{figure}"]')
    assert read_experiment(written(tmp_path, text)).flatness == (figure == "flatness")


def test_a_copy_of_earlier_versions_measures_no_flatness_of_compressions(tmp_path: Path) -> None:
    text = FULL.replace("flatness = true", 'flatness = true\nkind = "compression"')
    write_sealed_text(tmp_path / "experiment.toml", text)
    assert not read_experiment(tmp_path / "experiment.toml", sealed=True).flatness


def test_targets_are_rows_by_columns_or_a_number_for_a_row(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path, FULL))

    def where(method: str, **steps: int) -> dict[str, object]:
        return {"seed": 1, "method.name": method, **{f"scenario.{k}": v for k, v in steps.items()}}

    assert experiment.targets == (
        Target(where("gkd", steps=1), 1.5, "forgetting"),
        Target(where("tkd", steps=1), 2.0, "forgetting"),
        Target(where("tkd", steps=5), 3.25, "forgetting"),
        Target(where("gkd"), 60.0, "seconds"),
    )


def test_the_points_are_the_product_without_what_is_skipped(tmp_path: Path) -> None:
    points = read_experiment(written(tmp_path, FULL)).points()
    assert len(points) == 7
    assert points[0] == {"method.name": "gkd", "scenario.steps": 1, "seed": 1}
    assert {"method.name": "tkd", "scenario.steps": 5, "seed": 2} not in points


def test_axes_are_replaced_and_added(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path, FULL))
    axes = ["seed=7", "memory.per_class=5, none", "scenario.order=natural,3,3", "network=[1, 2]"]
    grid = experiment.with_axes(axes).grid
    assert grid["method.name"] == ("gkd", "tkd")
    assert grid["seed"] == (7,)
    assert grid["memory.per_class"] == (5, None)
    assert grid["scenario.order"] == ("natural", 3)
    assert grid["network"] == (1, 2)
    for wrong in ("seed", "seed=", "=1", "seed=[]"):
        with pytest.raises(ValueError, match="KEY=VALUE,VALUE"):
            experiment.with_axes([wrong])
    tables = [{"temperature": 1.0}, {"temperature": 2.0}]
    grid = experiment.with_axes({"memory.per_class": [5, None], "method.options": tables}).grid
    assert grid["memory.per_class"] == (5, None)
    assert grid["method.options"] == tuple(tables)


def test_a_pipe_is_read_once() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as file:
        file.write(FULL)
    assert read_experiment(Path(f"/dev/fd/{reader}")).text == FULL
    os.close(reader)


def test_the_copy_that_a_sweep_keeps_has_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "table-of-mine"
    folder.mkdir()
    (folder / "experiment.toml").write_text(FULL)
    assert read_experiment(folder / "experiment.toml").name == "table-of-mine"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'title = "Two',
            'titel = "Two',
            "titel is not a key of an experiment; did you mean title?",
        ),
        ('about = "What they reach."', "about = 3", "about must be a text, not 3."),
        ('"forgetting"\n', '"forgotten"\n', "'forgotten'; did you mean forgetting?"),
        ('"forgetting"\n', '"variance"\n', "measure must be one of average_incremental"),
        ("flatness = true", "flatness = 1", "flatness must be true or false, not 1"),
        ("flatness = true", 'figures = ["flatnes"]', "figures must be one of curves, "),
        (
            "flatness = true",
            'flatness = true\nkind = "compression"',
            "flatness is measured for runs",
        ),
        ('[grid]\n"method.name"', '[grids]\n"method.name"', "grids is not a key of an experiment"),
        ("seed = [1, 2]", "seed = 1", "grid.seed must be a list of values, not 1."),
        ("seed = [1, 2]", "seed = []", "grid.seed must be a list of values, not []."),
        ('rows = "method.name"', 'rows = "method.nam"', "did you mean method.name?"),
        ('columns = "scenario.steps"\n', "", "table.columns must be one of method.name, "),
        ("[table]", "[table]\ncells = 1", "cells is not a key of table; there are rows, columns."),
        ("[paper.where]\nseed", "[paper.where]\nsed", "sed is not a key of the grid"),
        ("seed = 2 }", "stepz = 2 }", "stepz is not a key of the grid"),
        ("skip = [{", "skip = [1, {", "skip has points of the grid in braces, not 1."),
        ("tkd = [2, 3.25]", "tdk = [2, 3]", "tdk is not a value of method.name; did you mean tkd?"),
        ("tkd = [2, 3.25]", "tkd = [2]", "1 numbers for the 2 values of scenario.steps"),
        ("gkd = 60", 'gkd = "1 h"', "paper.seconds.gkd must be a number or a list of numbers"),
        ("[paper.seconds]", "[paper.minutes]", "paper must be one of average_incremental"),
        ('data.source = "digits"', 'data.source = "digits"\n[settings.data]', "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert FULL.count(old) == 1
    text = FULL.replace(old, new)
    if words == "is not TOML":
        with pytest.raises(ValueError, match=words):
            read_experiment(written(tmp_path, text))
    else:
        assert words in refused(tmp_path, text)


def test_a_grid_must_have_points(tmp_path: Path) -> None:
    start = 'title = "a"\nabout = "b"\n'
    assert "grid has no key" in refused(tmp_path, start)
    skip = 'skip = [{ seed = 1 }]\n[grid]\nseed = [1]\n[table]\nrows = "seed"\ncolumns = "seed"\n'
    assert "skip leaves no point" in refused(tmp_path, start + skip)
    with pytest.raises(ValueError, match="no configuration file"):
        read_experiment(tmp_path / "none.toml")


def test_axes_must_leave_points(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path, FULL))
    only = experiment.with_axes(["method.name=tkd", "scenario.steps=5", "seed=2"])
    with pytest.raises(ValueError, match="skip leaves no point of the grid"):
        only.points()


def test_a_search_is_a_table(tmp_path: Path) -> None:
    for value in ("5", "true", '"grid"'):
        assert "search must be a table" in refused(tmp_path, f"search = {value}\n{FULL}")


def test_a_grid_that_nobody_means(tmp_path: Path) -> None:
    text = FULL.replace("seed = [1, 2]", f"seed = {[*range(2501)]}")
    assert "10,004 runs" in refused(tmp_path, text)
    text = FULL.replace("seed = [1, 2]", f"seed = {[1] * 10_001}")
    assert "10,001 values" in refused(tmp_path, text)


def test_sections_and_dotted_keys_are_the_same() -> None:
    tree = {"seed": 1, "method": {"name": "gkd", "options": {"draws": 2}}}
    dotted = {"seed": 1, "method.name": "gkd", "method.options.draws": 2}
    assert flat(tree) == dotted
    assert nested(dotted) == tree
    assert label({"method.name": "gkd", "scenario.steps": 5, "seed": 1}) == "gkd steps=5 seed=1"


def test_the_papers_tables_are_complete() -> None:
    """As many numbers as the paper prints, the differences in its margins left out."""
    numbers = {file.stem: len(read_experiment(file).targets) for file in LIBRARY.glob("*.toml")}
    assert numbers == {
        "table1-cifar100": 11 * 4,
        "table2-imagenet100": 10 * 4,
        "table3-imagenet1000": 6 * 2,
        "table4-distillations": 4 * 2 * 2,
        "table5-ablation": 4 * 2,
        "table5-ablation-imagenet100": 4 * 2,
        "table6-orders": 2 * 2,
        "fig-curves": 7 * 2,
        "fig-stability": 3,
        "fig-flatness": 3,
        "fig-memory": 0,
        "compression": 2,
        "compression-imagenet100": 2,
        "many-tasks": 2,
    }


def test_a_number_that_stands_in_two_files_is_the_same() -> None:
    """But for those where the paper contradicts itself, by 0.01 and on other data."""
    known: dict[tuple[str, str], dict[float, str]] = {}
    for file in sorted(LIBRARY.glob("*.toml")):
        experiment = read_experiment(file)
        source = experiment.settings["data"]["source"]
        for target in experiment.targets:
            if target.measure == "average_incremental_accuracy":
                where = {k: v for k, v in target.where.items() if "per_image" not in k}
                known.setdefault((source, label(where)), {})[target.value] = file.stem
    double = {key: sorted(values) for key, values in known.items() if len(values) > 1}
    assert double == {("cifar100", "gkd steps=10"): [64.40, 64.41]}
    assert known["cifar100", "rdkd steps=25"].keys() == {62.31}
