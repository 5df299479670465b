"""The notebooks run from top to bottom, and their stored outputs are those of this code."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    stored = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    assert all(cell.execution_count for cell in stored.cells if cell.cell_type == "code")
    work = tmp_path / "work"
    work.mkdir()
    # Raises with the cell and its traceback if one fails.
    NotebookClient(stored, timeout=300, resources={"metadata": {"path": str(work)}}).execute()
    assert not list(file.parent.glob("runs"))


def test_the_notebooks_are_found() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["loss", "method"]
