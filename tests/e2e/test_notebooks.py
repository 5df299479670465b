"""The notebooks run from top to bottom, with less training than in their stored outputs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
# Settings of a notebook, and what a test has time for; each occurs once.
SHORT = {
    "loss": {},
    "method": {"epochs=6": "epochs=1"},
    "table": {"data.per_class = 40": "data.per_class = 6", "epochs = 3": "epochs = 1"},
}


class Recorder(NotebookClient):
    """Keeps what replaced an output in place."""

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.resources.setdefault("updates", []).append(msg["content"]["data"])
        return super().process_message(msg, cell, cell_index)


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    stored = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    assert all(cell.execution_count for cell in stored.cells if cell.cell_type == "code")
    for long, short in SHORT[file.stem].items():
        (cell,) = (cell for cell in stored.cells if cell.source.count(long) == 1)
        cell.source = cell.source.replace(long, short)
    work = tmp_path / "work"
    work.mkdir()
    # Raises with the cell and its traceback if one fails.
    client = Recorder(stored, timeout=600, resources={"metadata": {"path": str(work)}})
    client.execute()
    assert not list(file.parent.glob("runs"))
    drawn = [update["text/plain"] for update in client.resources.get("updates", ())]
    # A notebook that shows progress has bars, which are gone in the end.
    assert bool(drawn) == (file.stem == "table")
    if drawn:
        assert any("running" in text and "━" in text for text in drawn)
        assert drawn[-1] == ""


def test_the_notebooks_are_found() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["loss", "method", "table"]
