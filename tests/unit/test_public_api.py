import ast
import subprocess
import sys
from pathlib import Path

import pytest

import densekd


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


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'densekd' has no attribute 'Lerner'"):
        _ = densekd.Lerner


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import densekd, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
