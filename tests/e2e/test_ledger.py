import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from densekd.config.settings_tree import digest
from densekd.files import read_sealed_json
from densekd.runs.epochs import read_epochs
from densekd.training.checkpoint import Checkpoints

from support.run_folders import rewrite, write_run

ROOT = Path(__file__).parents[2]
MARKS = "<!-- the ledger: written by benchmarks/ledger.py -->\n<!-- the end of the ledger -->"


@pytest.fixture(scope="module")
def ledger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ledger", ROOT / "benchmarks" / "ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two documents that have nothing but their marks."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/results.md"):
        (tmp_path / name).write_text(f"Before.\n{MARKS}\nAfter.\n", "utf-8")
    return tmp_path


def test_the_trained_base_is_intact_and_has_no_images(tmp_path: Path) -> None:
    (base,) = (ROOT / "docs" / "results" / "bases").iterdir()
    facts = read_sealed_json(base / "trained.json")
    assert digest(facts) == base.name
    state = Checkpoints(Path(shutil.copytree(base, tmp_path / "base"))).newest()
    assert state is not None
    assert state.facts["epoch"] == facts["settings"]["schedule"]["epochs"]
    assert max(tensor.numel() for tensor in state.tensors.values()) == 64 * 64 * 3 * 3
    assert len(read_epochs(base)) == 70


def copied(ledger: ModuleType, root: Path, *settings: str) -> Path:
    """Copy a made-up run on ten classes into the ledger; gives its file there."""
    folder = write_run(root / "runs", "data.source=cifar100", *settings)
    log = root / "log"
    log.write_text("Run folder: there\nepoch 1\nRun folder: there\n", "utf-8")
    ledger.copy_run(folder, root / "docs" / "results", log)
    return root / "docs" / "results" / folder.name / "result.json"


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_documents_say_what_the_results_say(ledger: ModuleType) -> None:
    entries = ledger.read_ledger(ROOT / "docs" / "results")
    for name, block in (
        ("docs/results.md", ledger.document(entries)),
        ("README.md", ledger.readme(entries)),
    ):
        text = (ROOT / name).read_text("utf-8")
        assert ledger.fill(text, block) == text, "run python benchmarks/ledger.py"
    with Image.open(ROOT / "docs" / "images" / "ledger.png") as figure:
        assert figure.info["Description"] == ledger.fingerprint(entries)


def test_two_runs(ledger: ModuleType, root: Path) -> None:
    file = copied(ledger, root, "method.name=gkd", "training.preset=strong-decay")
    copied(ledger, root, "method.name=fdkd")
    ledger.write(root)
    text = (root / "docs" / "results.md").read_text("utf-8")
    titles, _, other, this = rows(text)
    result = json.loads(file.read_text("utf-8"))
    assert "folder" not in result
    row = dict(zip(titles, this, strict=True))
    average = 100 * result["average_incremental_accuracy"]
    last = result["steps"][-1]
    assert row["ours"] == f"**{average:.2f}**"
    assert (row["paper"], row["gap"]) == ("65.73", f"{average - 65.73:+.2f}")
    assert row["forgetting"] == f"{100 * result['forgetting']:.1f}"
    assert row["old, last"] == f"{100 * last['old_accuracy']:.1f}"
    assert (row["weight decay"], row["seed"], row["resumed"]) == ("5e-4", "1993", "1")
    row = dict(zip(titles, other, strict=True))
    assert (row["method"], row["paper"], row["weight decay"]) == ("`fdkd`", "67.53", "1e-4")
    curve = ", ".join(f"{100 * step['accuracy']:.1f}" for step in result["steps"])
    assert f"- `gkd`, T = 5, 5 to 10 classes: {curve}\n" in text
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert f"| **{average:.2f}** |" in (root / "README.md").read_text("utf-8")
    with Image.open(root / "docs" / "images" / "ledger.png") as figure:
        before = figure.info["Description"]
    file.unlink()
    assert ledger.fingerprint(ledger.read_ledger(root / "docs" / "results")) != before


def test_a_run_of_many_tasks_lists_every_fifth_and_has_a_panel(
    ledger: ModuleType, root: Path
) -> None:
    copied(ledger, root, "method.name=rdkd")
    ledger.write(root)
    with Image.open(root / "docs" / "images" / "ledger.png") as figure:
        one_panel = figure.width
    folder = write_run(
        root / "runs",
        "data.source=cifar100",
        "method.name=rdkd",
        "scenario.steps=50",
        classes=100,
    )
    ledger.copy_run(folder, root / "docs" / "results", None)
    ledger.write(root)
    text = (root / "docs" / "results.md").read_text("utf-8")
    steps = json.loads((folder / "result.json").read_text("utf-8"))["steps"]
    assert [step["classes_seen"] for step in steps[::5]] == list(range(50, 101, 5))
    listed = ", ".join(f"{100 * step['accuracy']:.1f}" for step in steps[::5])
    assert f"- `rdkd`, T = 50, 50 to 100 classes, every 5th task: {listed}\n" in text
    with Image.open(root / "docs" / "images" / "ledger.png") as figure:
        assert figure.width > 1.5 * one_panel


def test_a_branch_names_its_parent(ledger: ModuleType, root: Path) -> None:
    folder = write_run(root / "runs", "data.source=cifar100", "method.name=rdkd")
    result = json.loads((folder / "result.json").read_text("utf-8"))
    result["config"]["start"] = {"run": "/somewhere/runs/cifar100-fdkd-0123", "after": 2}
    rewrite(folder / "result.json", result)
    (folder / "epochs.jsonl").write_text("{}\n", "utf-8")
    ledger.copy_run(folder, root / "docs" / "results", None)
    ledger.write(root)
    text = (root / "docs" / "results.md").read_text("utf-8")
    assert "- `rdkd`, T = 5, 5 to 10 classes (goes on from `cifar100-fdkd-0123@2`): " in text
    copy = root / "docs" / "results" / folder.name
    assert "somewhere" not in (copy / "result.json").read_text("utf-8")
    assert (copy / "epochs.jsonl").read_text("utf-8") == "{}\n"


def test_an_unfinished_run_is_refused(ledger: ModuleType, root: Path) -> None:
    folder = write_run(root / "runs", "data.source=cifar100", tasks=3)
    with pytest.raises(FileNotFoundError, match=r"result\.json"):
        ledger.copy_run(folder, root / "docs" / "results", None)


def test_written_twice_it_is_the_same(ledger: ModuleType, root: Path) -> None:
    copied(ledger, root, "method.name=gkd")
    ledger.write(root)
    once = (root / "docs" / "results.md").read_text("utf-8")
    ledger.write(root)
    assert (root / "docs" / "results.md").read_text("utf-8") == once


def test_nothing_to_show(ledger: ModuleType, root: Path) -> None:
    ledger.write(root)
    text = (root / "docs" / "results.md").read_text("utf-8")
    assert "No run" in text
    assert "![" not in text


def test_a_changed_number_is_found(ledger: ModuleType, root: Path) -> None:
    file = copied(ledger, root, "method.name=gkd")
    content = json.loads(file.read_text("utf-8"))
    for sealed in (True, False):  # with its checksum, and as a plain copy of result.json
        content["steps"][1]["accuracy"] = 0.99
        if not sealed:
            del content["sha256"]
        file.write_text(json.dumps(content), "utf-8")
        before = (root / "README.md").read_text("utf-8")
        with pytest.raises(ValueError, match="damaged"):
            ledger.write(root)
        assert (root / "README.md").read_text("utf-8") == before


@pytest.mark.parametrize("content", ['{"config": {}, "ste', "[]", '{"config": {}, "steps": [{}]}'])
def test_a_damaged_file_is_told(ledger: ModuleType, root: Path, content: str) -> None:
    file = copied(ledger, root, "method.name=gkd")
    file.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=file.parent.name):
        ledger.write(root)


def test_a_shortened_schedule_is_refused(ledger: ModuleType, root: Path) -> None:
    copied(ledger, root, "method.name=gkd", "epochs=0.5")
    with pytest.raises(ValueError, match="shortened schedule"):
        ledger.write(root)


def test_a_document_without_marks_is_told(ledger: ModuleType, root: Path) -> None:
    shutil.copy(root / "README.md", root / "docs" / "results.md")
    (root / "README.md").write_text("No marks.", "utf-8")
    with pytest.raises(ValueError, match="lacks"):
        ledger.write(root)
