"""The layout of the package: unique names, complete layers, a test file for every module."""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "densekd"
UNIT = ROOT / "tests" / "unit"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
MOST_LINES = 350
# Modules without a test file of their own, by the file that tests them.
TESTED_ELSEWHERE = {
    "e2e/test_cli_data.py": {"cli/data.py"},
    "e2e/test_cli_run.py": {"__main__.py", "cli/options.py", "cli/run.py"},
    "e2e/test_compress.py": {"cli/compress.py", "compression/compress.py"},
    "e2e/test_export.py": {"cli/export.py", "model/export.py", "model/quantise.py"},
    "e2e/test_flatness.py": {"cli/flatness.py"},
    "e2e/test_learn.py": {"cli/model.py"},
    "e2e/test_report.py": {
        "cli/compare.py",
        "cli/report.py",
        "reports/compare.py",
        "reports/overview.py",
        "reports/write.py",
    },
    "e2e/test_report_page.py": {"reports/page.py"},
    "e2e/test_run.py": {"runs/run.py"},
    "e2e/test_serve.py": {"cli/serve.py", "serve/access.py", "serve/api.py", "serve/server.py"},
    "e2e/test_sweeps.py": {"sweeps/work.py"},
    "e2e/test_ui.py": {"cli/ui.py", "ui/request_filter.py"},
    "faults/test_run_faults.py": {"runs/locks.py"},
    "faults/test_strange_runs.py": {"runs/stored.py", "json_checks.py"},
    "property/test_distill_properties.py": {"losses/checks.py"},
    "unit/display/test_run_progress.py": {"display/progress.py"},
    "unit/config/test_config_own_parts.py": {"config/file_checksums.py"},
    "unit/config/test_schema.py": {"checks.py"},
    "unit/jobs/test_local.py": {"jobs/events.py"},
    "unit/losses/test_distill.py": {"losses/groups.py"},
    "unit/methods/test_registry.py": {"methods/paper.py"},
    "unit/model/test_model.py": {"model/predict.py"},
    "unit/model/frozen/test_frozen_model.py": {
        "model/frozen/request.py",
        "model/frozen/update.py",
        "model/options.py",
    },
    "unit/model/test_teach.py": {
        "model/request.py",
        "model/store.py",
        "model/trained/model.py",
        "model/trained/request.py",
    },
    "unit/reports/test_figures.py": {"reports/charts.py"},
    "unit/reports/test_runs.py": {"reports/groups.py"},
    "unit/runs/test_runs_check.py": {"cli/check.py"},
    "unit/sweeps/test_sweep.py": {"sweeps/jobs.py"},
    "unit/training/test_engine.py": {"precision.py"},
    "unit/training/test_learner_estimator.py": {"training/settings.py"},
    "unit/test_public_api.py": {
        "api/report.py",
        "api/signature.py",
        "sweeps/outcome.py",
    },
    "unit/ui/test_predictor.py": {"ui/follower.py"},
}


def module_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def module_of(test: Path) -> str | None:
    """Return the module that ``test_MODULE*.py`` or ``test_FOLDER_MODULE*.py`` tests.

    The folder's name is there where file names would not be unique.
    """
    folder = PACKAGE / test.parent.relative_to(UNIT)
    words = test.stem.split("_")[1:]
    if folder != PACKAGE and words[0] == folder.name and len(words) > 1:
        words = words[1:]
    for count in range(len(words), 0, -1):
        module = folder / ("_".join(words[:count]) + ".py")
        if module.is_file():
            return module_name(module)
    return None


def public_names(module: Path) -> Iterator[str]:
    for node in ast.parse(module.read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        # Every module may have a logger.
        yield from (name for name in names if not name.startswith("_") and name != "logger")


def test_no_public_name_is_defined_in_two_modules() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for module in PACKAGE.rglob("*.py"):
        for name in public_names(module):
            places[name].add(module_name(module))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_layers_name_every_part_of_the_package() -> None:
    """`make lint` runs import-linter, which checks that imports follow the layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    assert contract["exhaustive"]
    layers = {part.strip() for layer in contract["layers"] for part in layer.split("|")}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert layers == folders | {path.stem for path in MODULES if path.parent == PACKAGE}


def test_every_module_has_tests() -> None:
    mirrored = {module_of(test) for test in UNIT.rglob("test_*.py")}
    elsewhere = set().union(*TESTED_ELSEWHERE.values())
    assert {module_name(path) for path in MODULES} - mirrored == elsewhere
    for test in TESTED_ELSEWHERE:
        assert (ROOT / "tests" / test).is_file()


def test_every_unit_test_mirrors_a_module() -> None:
    of_the_package = {"test_docs_map.py", "test_layout.py", "test_public_api.py"}
    assert {x.name for x in UNIT.rglob("test_*.py") if module_of(x) is None} == of_the_package


def test_no_module_is_too_long() -> None:
    lines = {module_name(path): path.read_text().count("\n") for path in MODULES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
