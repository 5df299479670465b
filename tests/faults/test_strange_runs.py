"""A run folder of someone else, or a damaged one, is data: sentences, no code, no network."""

import io
import json
import random
import re
import shutil
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from typer.testing import CliRunner

import densekd
from densekd.cli import app
from densekd.files import to_json
from densekd.reports.page import render_page
from densekd.reports.runs import find_runs
from densekd.reports.write import contents_of
from densekd.runs.epochs import EpochLog
from densekd.runs.predictions import Predictions, read_predictions, save_predictions
from densekd.runs.stored import load_result
from densekd.training.callbacks import TrainingProgress

from support.run_folders import rewrite, write_run, write_sweep

AVERAGE = "average_incremental_accuracy"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> NoReturn:
        raise AssertionError("the network was contacted")

    monkeypatch.setattr(socket.socket, "connect", refused)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "runs", "method.name=gkd", "scenario.steps=1")
    report = TrainingProgress(0, "train", 0, 9, 7, 7, 0.1, 123.0, {"new": 1.0})
    EpochLog(None, folder).report(report)
    flat = {"sigmas": [0.0, 0.1], "draws": 1, "images": 3, "losses": [[1.0], [2.0]]}
    rewrite(folder / "flatness.json", flat)
    return folder


def told(*command: str | Path) -> str:
    """The output of a command that ends without an error that nobody foresaw."""
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code in (0, 1, 2), (command, done.output)
    return done.output


def read_all(folder: Path) -> None:
    """Read a run in all ways, of which each gives a value or raises a ValueError."""
    render_page(contents_of(find_runs([folder])))
    loaded = densekd.load_run(folder)
    assert len(loaded.steps) == len(loaded.result["steps"] if loaded.result else loaded.steps)
    repr(densekd.compare(folder))
    repr(densekd.Result.open(folder))


def page(folder: Path) -> str:
    """The page about the runs in a folder."""
    return render_page(contents_of(find_runs([folder]))).decode()


def rows(page: str, table: str) -> list[dict[str, str]]:
    """What a table of the page shows, by the titles of its columns."""
    content = page.partition(f'data-table="{table}"')[2].partition("</table>")[0]
    titles = re.findall(r'<button type="button">(.*?)</button>', content)
    lines = re.findall(r"<tr data-methods=.*?</tr>", content, re.DOTALL)
    cells = ([re.sub(r"<.*?>", "", x) for x in re.findall(r"<td .*?</td>", line)] for line in lines)
    return [dict(zip(titles, line, strict=True)) for line in cells]


def changed(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy of a value with another one at a path."""
    copy = json.loads(json.dumps(value))
    place = copy
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = new
    return copy


def paths(value: Any, *before: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in JSON; of a list only its first item."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:1]))
    for key, item in items:
        yield (*before, key)
        yield from paths(item, *before, key)


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    1e308,
    "\x1b[2J=1",
    "<b>",
    [],
    [[]],
    {},
    {"a": {}},
    [None],
    "x" * 999,
)


def test_an_edited_accuracy_is_not_printed(run: Path) -> None:
    file = run / "result.json"
    before = load_result(run)[AVERAGE]
    file.write_text(file.read_text().replace(str(before), "0.98765", 1))
    commands: list[list[str | Path]] = [
        ["compare", run.parent],
        ["report", run.parent, "--out", run.parent / "out"],
    ]
    for command in commands:
        text = told(*command)
        assert "98.7" not in text
        assert f"{file} is damaged" in text.replace("\n", "")
    assert "98.7" not in (run.parent / "out" / "index.html").read_text()
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        densekd.Result.open(run)


@pytest.mark.parametrize("text", ["{}", "[]", "1", "null", '"a"', "", "\0", "[" * 200_000, "{" * 9])
def test_a_result_of_another_kind(text: str, run: Path) -> None:
    (run / "result.json").write_text(text)
    assert "damaged" in told("compare", run)
    assert "damaged" in told("check", run)
    assert [each.result for each in find_runs([run]).runs] == [None]
    for read in (densekd.Result.open, lambda folder: densekd.load_run(folder).result):
        with pytest.raises(ValueError, match=r"result\.json is damaged"):
            read(run)


def test_a_forged_result_with_a_right_checksum(run: Path) -> None:
    """Any value of the file may be of any type; it is read, or one sentence says what is wrong."""
    draw = random.Random(5)
    result = load_result(run)
    places = list(paths(result))
    assert len(places) > 100
    for path in draw.sample(places, 40):
        forged = changed(result, path, draw.choice(ODD))
        rewrite(run / "result.json", forged)
        try:
            read_all(run)
        except ValueError:
            continue
        except Exception as error:
            pytest.fail(f"{path}: {type(error).__name__}: {error}")


def test_forged_settings_of_an_unfinished_run(tmp_path: Path) -> None:
    draw = random.Random(6)
    folder = write_run(tmp_path, tasks=2)
    settings = densekd.load_run(folder).config
    text = (folder / "config.toml").read_text()
    lines = [line for line in text.splitlines() if " = " in line]
    assert settings is not None
    for line in draw.sample(lines, 15):
        key = line.partition(" = ")[0]
        value = draw.choice(['"x"', "-1", "[]", "1e308", "true", '"\\u001b[2J"', "{}"])
        (folder / "config.toml").write_text(
            text.partition("\n")[2].replace(f"\n{line}\n", f"\n{key} = {value}\n", 1)
        )
        try:
            render_page(contents_of(find_runs([folder])))
            densekd.load_run(folder)
        except ValueError:
            continue
        except Exception as error:
            pytest.fail(f"{key} = {value}: {type(error).__name__}: {error}")


def test_names_are_escaped_on_the_console(run: Path) -> None:
    result = load_result(run)
    result["config"]["method"]["name"] = "\x1b[2Jgkd"
    rewrite(run / "result.json", result)
    for text in (told("compare", run), repr(densekd.compare(run))):
        assert "\x1b[2J" not in text
        assert "x1b[2Jgkd" in text


def test_a_link_out_of_the_folder_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.move(run / "result.json", tmp_path / "secret.json")
    (run / "result.json").symlink_to(tmp_path / "secret.json")
    text = told("compare", run)
    assert "is a link out of" in text.replace("\n", "")
    with pytest.raises(ValueError, match="link out of"):
        find_runs([run])
    other = write_run(run.parent, "method.name=rdkd")
    assert [each.folder for each in find_runs([run.parent]).runs] == [other]


def test_code_of_a_stranger_isnt_run(run: Path) -> None:
    mine = run / "mine.py"
    mine.write_text("raise SystemExit('this was run')")
    result = load_result(run)
    result["config"]["method"]["name"] = f"{mine}:method"
    rewrite(run / "result.json", result)
    assert "this was run" not in told("compare", run)
    render_page(contents_of(find_runs([run])))


def test_predictions_that_ask_for_more_than_there_is(tmp_path: Path) -> None:
    labels, scores = np.arange(2), np.eye(2, dtype=np.float32)
    own = Predictions(labels, labels, scores, np.array(["a", "b"]))
    save_predictions(tmp_path, 1, own)
    file = tmp_path / "predictions" / "001.npz"
    assert read_predictions(file).classes.tolist() == ["a", "b"]
    header = io.BytesIO()
    shape = {"descr": "<i8", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(file, "w") as archive:
        for name in Predictions._fields:
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(ValueError, match="as long as it says"):
        read_predictions(file)
    np.savez_compressed(file, labels=np.zeros(10**6))
    with pytest.raises(ValueError, match="compressed"):
        read_predictions(file)
    np.savez(file, **{**own._asdict(), "labels": np.arange(3)})
    with pytest.raises(ValueError, match="shapes"):
        read_predictions(file)


def test_a_damaged_runs_json_says_what_to_do(run: Path) -> None:
    folder = run.parent / "sweeps" / "s"
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text("title = [")
    (folder / "runs.json").write_bytes(to_json({"runs": [{"folder": 3}]}))
    commands: list[list[str | Path]] = [
        ["report", folder, "--out", folder / "x"],
        ["check", folder],
    ]
    for command in commands:
        assert "damaged" in told(*command)


SWEEP = """
title = "Mine"
about = "One run."
[grid]
"ROWS" = ["gkd"]
seed = [1]
[table]
rows = "ROWS"
columns = "seed"
"""


def test_a_link_out_of_a_sweep_is_refused(run: Path, tmp_path: Path) -> None:
    folder = write_sweep(run.parent, "mine", SWEEP.replace("ROWS", "method.name"), {})
    shutil.move(folder / "experiment.toml", tmp_path / "secret.toml")
    (folder / "experiment.toml").symlink_to(tmp_path / "secret.toml")
    for place in (folder, run.parent):
        assert "is a link out of" in told("report", place, "--out", tmp_path / "x")


@pytest.mark.parametrize("damaged", ["experiment.toml", "runs.json"])
def test_a_damaged_sweep_leaves_others_on_the_page(
    damaged: str, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = SWEEP.replace("ROWS", "method.name")
    for name in ("good", "bad"):
        write_sweep(run.parent, name, text, {run: {"method.name": "gkd", "seed": 1}})
    file = run.parent / "sweeps" / "bad" / damaged
    file.write_text(file.read_text().replace("gkd", "rdk"))
    shown = page(run.parent)
    assert rows(shown, "good")[0]["method"] == "gkd"
    assert rows(shown, "bad") == []
    assert "</strong> bad can't be read" in shown
    assert str(run.parent) not in shown
    (sentence,) = (record.getMessage() for record in caplog.records)
    assert f"{file} is damaged" in sentence
    assert sentence.endswith("The sweep is left out.")
    if damaged == "runs.json":  # which names the runs of a sweep that is shown alone
        with pytest.raises(ValueError, match="damaged"):
            page(file.parent)
    else:
        assert rows(page(file.parent), "comparison")[0]["method"] == "gkd"


@pytest.mark.parametrize("key", ["method.name", "folder"])
@pytest.mark.parametrize(
    ("pick", "shown"),
    [
        ({}, {"trials": "0"}),
        ({"validation": None}, {"trials": "0"}),
        (
            {"validation": 0.5, "trials": 2, "more": 1},
            {"validation": "50.00", "trials": "2"},
        ),
    ],
)
def test_a_forged_sweep(pick: dict[str, Any], shown: dict[str, str], key: str, run: Path) -> None:
    folder = write_sweep(run.parent, "mine", SWEEP.replace("ROWS", key), {run: {key: "gkd"}})
    record = json.loads((folder / "runs.json").read_text())
    picks = [{"cell": {key: "gkd"}, "values": {}, **pick}]
    rewrite(folder / "runs.json", {**record, "search": {"keys": [], "picks": picks}})
    row = {"method" if key == "method.name" else key: "gkd"}
    assert rows(page(run.parent), "mine") == [row]
    assert rows(page(run.parent), "mine-picks") == [{**row, **shown}]


def test_forged_numbers_of_exemplars(run: Path) -> None:
    other = write_run(run.parent, "method.name=gkd", "scenario.steps=1", "memory.per_class=5")
    assert '<section id="memory">' in page(run.parent)
    result = load_result(other)
    rewrite(other / "result.json", changed(result, ("config", "memory", "per_class"), "x"))
    shown = page(run.parent)
    assert '<section id="memory">' not in shown
    assert "x exemplars a class" in shown
    assert len(rows(shown, "comparison")) == 2


def test_forged_numbers_that_no_mean_can_be_taken_of(run: Path) -> None:
    other = write_run(run.parent, "method.name=gkd", "scenario.steps=1", "seed=1")
    for folder in (run, other):
        result = changed(load_result(folder), (AVERAGE,), 1e308)
        result = changed(result, ("steps", 0, "accuracy"), 1e308)
        rewrite(folder / "result.json", changed(result, ("steps", 0, "seconds"), 1e308))
    (row,) = rows(page(run.parent), "comparison")
    assert (row["method"], row["runs"]) == ("gkd", "2")
    assert "average" not in row
    assert "training time" not in row
    assert 0 < float(row["last"].partition(" ")[0]) < 100


def test_a_name_that_matplotlib_would_hide(run: Path) -> None:
    result = load_result(run)
    result["config"]["method"] = {"name": "__"}
    rewrite(run / "result.json", result)
    assert "1 run" in told("report", run, "--out", run.parent / "out")


def test_a_forged_compression(tmp_path: Path) -> None:
    facts = {"kind": "compression", "method": "kd", "teacher": "a", "student": "b", "accuracy": 1}
    rewrite(tmp_path / "compress-kd" / "result.json", {**facts, "epochs": [{"epoch": 1}]})
    shown = page(tmp_path)
    (row,) = rows(shown, "compression")
    assert row == {"method": "kd", "accuracy": "100.00", "runs": "1"}
    assert "a → b · ?" in shown
    assert "The student's loss" not in shown  # there is no epoch with one
