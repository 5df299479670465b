"""The Python in docs/protocols.md and docs/metrics.md runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["protocols.md", "metrics.md"])
def test_the_code_of_a_page_runs(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})
