"""The Python in docs/protocols.md and docs/metrics.md runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize("page", ["protocols.md", "metrics.md"])
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


def test_the_protocols_of_peers_are_there() -> None:
    titles = re.findall(r"^## (.*)", (DOCS / "protocols.md").read_text("utf-8"), re.MULTILINE)
    for peer in ("PyCIL", "iCaRL", "FACIL", "Avalanche", "Task-incremental"):
        assert any(peer in title for title in titles)
