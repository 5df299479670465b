"""The documents name what exists: CONTRIBUTING's map, links, and decisions cited in the source."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "densekd"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_map_shows_every_folder_and_top_level_module() -> None:
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    folders = {f"{init.parent.name}/" for init in PACKAGE.glob("*/__init__.py")}
    modules = {module.name for module in PACKAGE.glob("*.py")}
    tests = {f"tests/{path.name}/" for path in (ROOT / "tests").iterdir() if _tracked(path)}
    assert folders | modules | tests <= named


def test_the_map_names_every_module_of_a_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for heads, described in re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE):
        for folder in re.findall(r"`([\w/]+)/`", heads):
            modules = {path.stem for path in (PACKAGE / folder).glob("*.py") if _needs_name(path)}
            assert modules <= set(re.findall(r"`(\w+)`", described)), folder


def _needs_name(module: Path) -> bool:
    """Whether the map must name a module: all but those of commands, which are named alike."""
    command = module.parent.name == "cli" and "@command(" in module.read_text("utf-8")
    return module.stem != "__init__" and not command


def _tracked(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(("_", "."))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
    missing = [x for x in links if "://" not in x and not (page.parent / x).exists()]
    assert not missing


def test_the_source_cites_decisions_that_exist() -> None:
    known = {page.name[:3] for page in (ROOT / "docs" / "decisions").glob("*.md")}
    for file in PACKAGE.rglob("*.py"):
        cited = re.findall(r"decisions?/? ?(\d{3})((?:(?:,| and) \d{3})*)", file.read_text("utf-8"))
        numbers = {n for first, more in cited for n in [first, *re.findall(r"\d{3}", more)]}
        assert numbers <= known, file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_imports_in_documents_exist(page: Path) -> None:
    script = page.read_text("utf-8").partition("\n## In the package\n")[0]
    blocks = re.findall(r"```python\n(.*?)```", script, re.DOTALL)
    for module, names in re.findall(r"^from (densekd\S*) import (.+)$", "\n".join(blocks), re.M):
        for name in names.split(", "):
            assert hasattr(import_module(module), name), f"{module} has no {name}"
