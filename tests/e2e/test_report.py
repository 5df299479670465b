import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import densekd
from densekd.cli import app
from densekd.reports.charts import Chart
from densekd.reports.events import read_losses
from densekd.reports.page import Section, render_page
from densekd.reports.runs import find_runs
from densekd.reports.write import contents_of

from support.run_folders import rewrite, write_run, write_sweep

# Two tasks of five digits each, in a few seconds.
SHORT = ["--epochs", "1", "--steps", "1", "--network", "resnet8", "-o", "data.per_class=10"]
AVERAGE = "average_incremental_accuracy"


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


class Page(HTMLParser):
    """The rows of a page's tables, its data, and what elements it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._texts: dict[str, str] = {}
        self._table = self._inside = ""
        self.feed(text)
        self.data: dict[str, Any] = json.loads(self._texts["data"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "data-table" in attributes:
            self._table = str(attributes["data-table"])
            self.tables[self._table] = []
        elif tag == "tr" and "data-methods" in attributes:
            self.tables[self._table].append([])
        elif tag == "td":
            self.tables[self._table][-1].append(str(attributes["data-value"]))
        self._inside = str(attributes.get("id")) if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._texts[self._inside] = self._texts.get(self._inside, "") + data


def read(out: Path) -> Page:
    return Page((out / "index.html").read_text("utf-8"))


def table(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that were really trained."""
    out = tmp_path_factory.mktemp("runs")
    for method in ("gkd", "finetune"):
        assert call("run", "--out", out, *SHORT, "--method", method, "--quiet").exit_code == 0
    return out


@pytest.fixture(scope="module")
def reported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The report on them, and what was said."""
    out = tmp_path_factory.mktemp("report")
    return out, call("report", trained, "--out", out)


def results(runs: Path) -> dict[str, dict[str, Any]]:
    files = runs.glob("*/result.json")
    found = [json.loads(file.read_text()) for file in files]
    return {result["config"]["method"]["name"]: result for result in found}


def test_a_result_says_what_it_was_computed_on(trained: Path) -> None:
    for result in results(trained).values():
        machine = result["machine"]
        assert machine["processor"]
        assert machine["cores"] >= 1
        assert machine["memory"] is None or machine["memory"] > 2**28
        assert machine["accelerator"] is None or result["engine"]["device"] != "cpu"
        source = Path(densekd.__file__).parent
        git = ["git", "-C", str(source), "rev-parse", "HEAD"]
        head = subprocess.run(git, capture_output=True, text=True, check=False)
        if head.returncode == 0:
            assert re.fullmatch(r"[0-9a-f]{40}\+?", result["commit"])
        else:
            assert result["commit"] is None


def test_tables_have_the_numbers_of_the_results(
    trained: Path, reported: tuple[Path, Result]
) -> None:
    out, told = reported
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("2 runs: 4 tables as CSV, Markdown and LaTeX, 4 figures as PDF")
    assert told.stdout.endswith(f"Open {out / 'index.html'}.\n")
    known = results(trained)
    rows = {row["method"]: row for row in table(out, "comparison")}
    assert set(rows) == set(known)
    for method, result in known.items():
        assert float(rows[method][AVERAGE]) == result[AVERAGE]
        assert float(rows[method]["forgetting"]) == result["forgetting"]
        for name in ("accuracy", "base_accuracy", "old_accuracy", "new_accuracy"):
            assert float(rows[method][name]) == result["steps"][-1][name]
        assert rows[method]["protocol"].endswith("shortened to 1 epoch")
        shown = f"| {100 * result[AVERAGE]:.2f} |"
        assert shown in (out / "tables" / "comparison.md").read_text()
    further = {row["method"]: row for row in table(out, "metrics")}
    for method, result in known.items():
        for name in ("learning_accuracy", "backward_transfer", "forward_transfer"):
            assert float(further[method][name]) == result[name]
        for name in ("mean_task_accuracy", "mean_class_accuracy", "task_incremental_accuracy"):
            assert float(further[method][name]) == result["steps"][-1][name]
            assert float(further[method][f"average_{name}"]) == result[f"average_{name}"]
    (difference,) = table(out, "differences")
    first, second = (known[difference[key]] for key in ("first", "second"))
    assert float(difference["difference"]) == pytest.approx(first[AVERAGE] - second[AVERAGE])
    assert difference["pairs"] == "1"
    assert "low" not in difference
    assert difference["verdict"] == "one pair: nothing can be said"


def test_the_page_has_the_numbers_of_the_results(
    trained: Path, reported: tuple[Path, Result]
) -> None:
    out, _ = reported
    found, known = read(out), results(trained)
    for row in found.tables["comparison"]:
        assert float(row[1]) == known[row[0]][AVERAGE]
    maps = [figure for figure in found.data["figures"] if "values" in figure]
    charts = [figure for figure in found.data["figures"] if "values" not in figure]
    (curve,) = [c for c in charts if c["title"].startswith("All classes seen")]
    for series in curve["series"]:
        steps = known[found.data["methods"][series["method"]]]["steps"]
        points = [[step["classes_seen"], 100 * step["accuracy"], None] for step in steps]
        assert series["points"] == points
    for heat in maps:
        matrix = known[found.data["methods"][heat["method"]]]["accuracy_matrix"]
        for after, values in enumerate(heat["values"]):
            assert values == pytest.approx([100 * value for value in matrix[after][: after + 1]])


def test_the_page_says_how_the_runs_came_about(
    trained: Path, reported: tuple[Path, Result]
) -> None:
    out, _ = reported
    text = (out / "index.html").read_text("utf-8")
    result = results(trained)["gkd"]
    assert "No run was trained for its full schedule: shortened to 1 epoch." in text
    assert f"torch {result['versions']['torch']}" in text
    assert result["machine"]["processor"] in text
    assert "lambda_base = " in text
    assert str(trained) not in text  # where someone keeps runs is nobody's business


def test_losses_are_those_that_tensorboard_has(
    trained: Path, reported: tuple[Path, Result]
) -> None:
    out, _ = reported
    drawn = read(out).data["figures"]
    charts = {c["title"]: c for c in drawn if c.get("section") == "losses"}
    assert set(charts) == {"Loss term: new", "Loss term: exemplars", "Loss term: kd"}
    (folder,) = trained.glob("digits-gkd-*")
    (series,) = charts["Loss term: kd"]["series"]
    assert [point[:2] for point in series["points"]] == [
        list(event) for event in read_losses(folder)["kd"]
    ]
    assert read_losses(out) == {}


def test_every_file_that_the_page_names_is_there(reported: tuple[Path, Result]) -> None:
    out, _ = reported
    links = [str(attributes["href"]) for tag, attributes in read(out).tags if tag == "a"]
    files = {link for link in links if not link.startswith("#")}
    assert files == {str(file.relative_to(out)) for file in out.glob("*/*")}
    assert len(files) == 4 * 3 + 4 * 2


def test_nothing_is_one_sentence(tmp_path: Path) -> None:
    result = call("report", tmp_path, "--out", tmp_path / "report")
    assert result.exit_code == 2
    expected = f"Error: There is no run in {tmp_path}; `densekd run` makes some.\n"
    assert result.stderr == expected
    assert not (tmp_path / "report").exists()


def test_an_unfinished_run_is_reported_too(tmp_path: Path) -> None:
    write_run(tmp_path, "scenario.steps=1", tasks=0)
    result = call("report", tmp_path, "--out", tmp_path / "report")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("1 run, 1 of them unfinished: 2 tables")
    (row,) = table(tmp_path / "report", "runs")
    assert row["state"] == "0 of 2 tasks"
    (row,) = table(tmp_path / "report", "comparison")
    assert row["runs"] == "0"


def test_a_band_is_mentioned_only_where_one_is_drawn(tmp_path: Path) -> None:
    def about(section: str) -> str:
        contents = contents_of(find_runs([tmp_path]))
        return next(each.about for each in contents.sections if each.name == section)

    write_run(tmp_path, "seed=1")
    assert "band" not in about("curves")
    write_run(tmp_path, "seed=2")
    assert "The band is one standard deviation over runs." in about("curves")
    assert "The band" in about("stability")


def test_two_sweeps_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    text = """
title = "Mine"
about = "One run."
[grid]
"method.name" = ["gkd"]
seed = [1, 2]
[table]
rows = "method.name"
columns = "seed"
"""
    for seed in (1, 2):
        out = tmp_path / f"runs{seed}"
        point = {"method.name": "gkd", "seed": seed}
        points = {write_run(out, "method.name=gkd", f"seed={seed}"): point}
        write_sweep(out, "mine", text, points)
    # Called like one of the report's own tables.
    write_sweep(out, "comparison", text, points)
    report = tmp_path / "report"
    assert call("report", tmp_path / "runs1", tmp_path / "runs2", "--out", report).exit_code == 0
    files = {file.name: file.read_text() for file in report.glob("tables/*.csv")}
    assert "seed_1" in files["mine.csv"]
    assert "seed_2" in files["mine-2.csv"]
    assert "runs" in files["comparison.csv"].partition("\n")[0]
    assert "seed_2" in files["comparison-2.csv"]
    page = Page((report / "index.html").read_text("utf-8"))
    assert {"mine", "mine-2", "comparison", "comparison-2"} <= page.tables.keys()
    anchors = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(anchors) == len(set(anchors))


MINE = """
title = "Mine"
about = "One run."
[grid]
"method.name" = ["gkd"]
seed = [1]
[table]
rows = "method.name"
columns = "seed"
"""


def test_each_of_two_sweeps_shows_its_own_runs(tmp_path: Path) -> None:
    """The same run was made in two places, by two machines, say."""
    folders = [write_run(tmp_path / f"runs{n}", "method.name=gkd", "seed=1") for n in (1, 2)]
    assert folders[0].name == folders[1].name
    for number, folder in enumerate(folders, 1):
        result = json.loads((folder / "result.json").read_text())
        rewrite(folder / "result.json", {**result, AVERAGE: number / 10})
        write_sweep(folder.parent, "mine", MINE, {folder: {"method.name": "gkd", "seed": 1}})
    report = tmp_path / "report"
    assert call("report", tmp_path / "runs1", tmp_path / "runs2", "--out", report).exit_code == 0
    for name, expected in (("mine", "0.1"), ("mine-2", "0.2")):
        (row,) = table(report, name)
        assert row[f"seed_1_{AVERAGE}"] == expected
    tags = read(report).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(a["href"]) for tag, a in tags if tag == "a" and "#run-" in str(a["href"])]
    assert sorted(links) == ["#run-0", "#run-1"]


@pytest.mark.parametrize("rows", ["method.name", "network"])
def test_picks_are_filtered_by_the_labels_of_their_runs(rows: str, tmp_path: Path) -> None:
    """These differ from the name of the method if it was also run with other settings."""
    key = "method.options.temperature"
    runs = [write_run(tmp_path, "method.name=gkd", "seed=1", f"{key}={t}") for t in (2.0, 4.0)]
    cell = {rows: {"method.name": "gkd", "network": "resnet8"}[rows]}
    text = MINE.replace("method.name", rows).replace("gkd", cell[rows])
    points = {run: {**cell, "seed": 1, key: t} for run, t in zip(runs, (2.0, 4.0), strict=True)}
    folder = write_sweep(tmp_path, "mine", text, dict(list(points.items())[:1]))
    record = json.loads((folder / "runs.json").read_text())
    pick = {"cell": cell, "values": {key: 2.0}, "validation": 0.5, "trials": 1}
    rewrite(folder / "runs.json", {**record, "search": {"keys": [key], "picks": [pick]}})
    contents = contents_of(find_runs([tmp_path]))
    (picks,) = [t for s in contents.sections for t in s.tables if t.name == "mine-picks"]
    assert picks.rows[0].methods == ("gkd, temperature 2.0",)
    assert render_page(contents)


def test_tables_of_one_sweep_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("densekd.reports.write.draw_figures", lambda *_: {})  # takes long
    sources = ["npz:a b.npz", "npz:a-b.npz", f"npz:{'x' * 300}.npz"]
    points = {
        write_run(tmp_path, "method.name=gkd", "seed=1", f"data.source={source}"): {
            **{"method.name": "gkd", "seed": 1},
            "data.source": source,
        }
        for source in sources
    }
    write_sweep(tmp_path, "mine", MINE, points)
    assert call("report", tmp_path, "--out", tmp_path / "report").exit_code == 0
    files = {file.stem for file in tmp_path.glob("report/tables/mine*.csv")}
    assert len(files) == 3
    assert {"mine-source-npz-a-b.npz", "mine-source-npz-a-b.npz-2"} < files


def test_figures_of_protocols_with_similar_names_have_files_of_their_own() -> None:
    names = ("a", "A", "a 2", "a 1")
    charts = tuple(Chart("curves", "", name, "", "", ()) for name in names)
    figures = Section("curves", "", charts=charts).figures()
    assert [protocol for protocol, _ in figures.values()] == list(names)


def test_a_sweep_that_has_no_record_yet_is_passed_over(tmp_path: Path) -> None:
    """It has just begun, or `densekd check --repair` has set a damaged record aside."""
    write_run(tmp_path, "method.name=gkd", "seed=1")
    folder = write_sweep(tmp_path, "mine", MINE, {})
    (folder / "runs.json").unlink()
    assert call("report", tmp_path, "--out", tmp_path / "report").exit_code == 0
    assert not (tmp_path / "report" / "tables" / "mine.csv").exists()


def test_names_stay_text(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    experiment = f"""
title = "{evil}"
about = "{evil}"
[grid]
"method.name" = ["rdkd"]
seed = [1993]
[table]
rows = "method.name"
columns = "seed"
"""
    folder = write_run(tmp_path, f"data.source=npz:{evil}.npz")
    write_sweep(tmp_path, "evil", experiment, {folder: {"method.name": "rdkd", "seed": 1993}})
    found = Page(render_page(contents_of(find_runs([tmp_path]))).decode())
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert found.data["protocols"][0].startswith(f"npz:{evil}.npz · T = 5")


def test_compare_passes_over_compressions(trained: Path, tmp_path: Path) -> None:
    write_run(tmp_path, "seed=3")
    (tmp_path / "compress-kd-1").mkdir()
    (tmp_path / "compress-kd-1" / "result.json").write_text('{"kind": "compression"}')
    result = call("compare", tmp_path)
    assert result.exit_code == 0
    assert "rdkd" in result.stdout


def test_compare_has_the_numbers_of_the_results(tmp_path: Path) -> None:
    known = {}
    for method in ("gkd", "rdkd"):
        folder = write_run(tmp_path, f"method.name={method}", "scenario.steps=1")
        known[method] = json.loads((folder / "result.json").read_text())
    write_run(tmp_path, "method.name=tkd", tasks=2)
    result = call("compare", tmp_path, "--plot", tmp_path / "curves.png")
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if "kd" in line]
    best_first = sorted(known, key=lambda method: -known[method][AVERAGE])
    expected = []
    for method in best_first:
        last = known[method]["steps"][-1]
        names = ("accuracy", "base_accuracy", "old_accuracy", "new_accuracy")
        shares = [known[method][AVERAGE], *(last[name] for name in names)]
        expected.append([method, *(f"{100 * share:.1f}" for share in shares), "0.1"])
    assert rows == expected
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = call("compare", tmp_path, "--all").stdout.splitlines()
    _, _, *rows = (line.split() for line in lines if line.strip().startswith(("gkd", "rdkd")))
    for method, row in zip(best_first, rows, strict=True):
        assert row[0] == method
        assert row[1] == f"{100 * known[method]['average_mean_task_accuracy']:.1f}"
        assert row[8] == f"{100 * known[method]['backward_transfer']:.1f}"
        assert row[9] == "-"  # not measured


def test_compare_passes_over_a_result_that_was_cut_off(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "seed=3")
    (folder / "result.json").write_text('{"steps": [')
    result = call("compare", tmp_path)
    assert result.exit_code == 2
    expected = f"Error: There is no finished run in {tmp_path}; `densekd run` makes some.\n"
    assert result.stderr.endswith(expected)
    assert f"Warning: {folder / 'result.json'} is damaged" in result.stderr
    write_run(tmp_path, "seed=4")
    assert call("compare", tmp_path).stdout.count("rdkd") == 1
    assert call("compare", tmp_path / "none").exit_code == 2


def test_compare_needs_no_torch() -> None:
    code = "import sys, densekd.reports.compare; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
