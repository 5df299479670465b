import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import densekd
from densekd.config.keywords import RUN_KEYS


@pytest.mark.parametrize("name", densekd.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    given = getattr(densekd, name)
    assert given.__name__ == name
    assert given.__module__.startswith("densekd.")


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(densekd.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == {
        name: getattr(densekd, name).__module__ for name in densekd.__all__
    }


@pytest.mark.parametrize("name", densekd.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    given = getattr(densekd, name)
    assert len(inspect.getdoc(given) or "") > 40
    assert name in (densekd.__doc__ or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", densekd.__all__)
def test_the_example_of_every_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = getattr(densekd, name)
    found = doctest.DocTestFinder(recurse=False).find(given, name)
    examples = [each for each in found if each.examples]
    assert examples, f"densekd.{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for each in examples:
        runner.run(each)
    assert not runner.failures, capsys.readouterr().out


def test_the_keywords_of_run_are_in_its_signature_and_its_text() -> None:
    parameters = inspect.signature(densekd.run).parameters
    assert {*RUN_KEYS} <= {*parameters}
    assert all(f"``{name}``:" in (densekd.run.__doc__ or "") for name in RUN_KEYS)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'densekd' has no attribute 'Lerner'"):
        _ = densekd.Lerner


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import densekd, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
