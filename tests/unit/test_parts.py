"""References to parts of one's own: what they name, what runs, and what errors say."""

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from densekd import parts

Write = Callable[[str], str]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write ``mine.py`` in the current folder, and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "mine.py").write_text(text)
        return "mine.py"

    return write


@pytest.mark.parametrize("text", ["mine.py:eeil", "/a b/c.py:x1", "python:tiny-0123456789ab"])
def test_these_are_references(text: str) -> None:
    assert parts.is_reference(text)


@pytest.mark.parametrize(
    "text", ["rdkd", "icarl+rdkd", "folder:a.py", "mine.py", "mine.py:", "python:tiny", 1993, None]
)
def test_these_are_not(text: object) -> None:
    assert not parts.is_reference(text)


def test_a_file_runs_once_and_again_when_it_has_changed(mine: Write) -> None:
    mine("x, y = 1, []")
    first = parts.load_files(["mine.py:x"])
    held = parts.find("mine.py:y")
    assert parts.load_files(["mine.py:y"]) == first
    assert parts.find("mine.py:y") is held
    assert parts.find("mine.py:x") == 1
    mine("x = 2")
    assert parts.find("mine.py:x") == 1  # a run keeps the code that it began with
    second = parts.load_files(["mine.py:x", "mine.py:y"])
    assert parts.find("mine.py:x") == 2
    assert first.keys() == second.keys() == {"mine.py"}
    assert first != second
    assert parts.version("mine.py:x") == second["mine.py"]


def test_a_file_that_nobody_agreed_to_does_not_run(mine: Write, tmp_path: Path) -> None:
    mine("open('ran', 'w')\nx = 1")
    with pytest.raises(parts.OwnPartError, match="--trust-code"):
        parts.find("mine.py:x")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = 1\n\nb = unknown\n", "mine.py can't be used: NameError in line 3: name 'unknown'"),
        ("a = 1\ndef f(:\n", "mine.py can't be used: SyntaxError in line 2"),
        ("import nowhere\n", "ModuleNotFoundError in line 1: No module named 'nowhere'"),
        ("raise SystemExit(3)", "SystemExit in line 1"),
    ],
)
def test_an_error_of_the_file_is_one_sentence(mine: Write, text: str, sentence: str) -> None:
    mine(text)
    with pytest.raises(parts.OwnPartError, match=sentence) as found:
        parts.load_files(["mine.py:x"])
    assert found.value.__cause__ is not None


def test_a_missing_file_and_a_missing_name_are_named(mine: Write) -> None:
    with pytest.raises(parts.OwnPartError, match=r"other\.py can't be read \(No such file"):
        parts.load_files(["other.py:x"])
    mine("tiny = 1")
    parts.load_files(["mine.py:tony"])
    with pytest.raises(parts.OwnPartError, match=r"mine\.py has no tony; did you mean tiny"):
        parts.find("mine.py:tony")


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop.py"
    loop.symlink_to(loop)
    with pytest.raises(parts.OwnPartError, match=r"loop\.py can't be read \(Too many levels"):
        parts.load_files([f"{loop}:anything"])


def test_an_error_in_a_function_names_file_and_line(mine: Write) -> None:
    mine("def f(x):\n    return {}[x]\n")
    parts.load_files(["mine.py:f"])
    function = parts.find("mine.py:f")
    assert callable(function)
    with (
        pytest.raises(
            parts.OwnPartError, match=r"f can't be used: KeyError in line 2 of mine.py: 'a'"
        ),
        parts.explain_errors(),
    ):
        function("a")


def test_errors_of_packages_stay_as_they_are_unless_a_part_is_named() -> None:
    with pytest.raises(json.JSONDecodeError):
        parts.explain_errors()(json.loads)("{")
    with pytest.raises(parts.OwnPartError, match="The metric ece can't be used: JSONDecodeError"):
        parts.explain_errors("The metric ece")(json.loads)("{")


def test_errors_of_an_observer_stay_as_they_are() -> None:
    class Observer:
        def report(self) -> None:
            raise KeyError("a")

    with pytest.raises(KeyError), parts.explain_errors(but=Observer):
        Observer().report()
    with pytest.raises(parts.OwnPartError, match="report can't be used"), parts.explain_errors():
        Observer().report()


def test_a_part_that_exits_is_explained() -> None:
    with pytest.raises(parts.OwnPartError, match="SystemExit"), parts.explain_errors("The order a"):
        sys.exit("no")


def test_a_part_is_named_by_its_file_or_its_kind() -> None:
    assert parts.display_name("mine.py:ece", "metric") == "mine.py:ece"
    assert parts.display_name("python:ece-0123456789ab", "metric") == "The metric ece"


def test_what_a_file_draws_is_the_same_in_every_process(mine: Write) -> None:
    text = "import random\nimport numpy\nimport torch\nx = [random.random(), numpy.random.rand(), "
    mine(text + "float(torch.rand(()))]")
    parts.load_files(["mine.py:x"])
    drawn = parts.find("mine.py:x")
    mine(text + "float(torch.rand(()))]  # again")
    parts.load_files(["mine.py:x"])
    assert parts.find("mine.py:x") == drawn


def test_a_python_value_is_found_again_by_its_reference() -> None:
    def tiny() -> int:
        return 1

    reference = parts.refer(tiny)
    assert parts.is_reference(reference)
    assert parts.short_name(reference) == "tiny"
    assert parts.find(reference) is tiny
    assert reference.endswith(parts.version(reference))
    assert parts.refer(1.5, name="my value").startswith("python:my_value-")


def test_a_value_of_another_process_is_not_found() -> None:
    with pytest.raises(parts.OwnPartError, match="another Python process"):
        parts.find("python:tiny-000000000000")


def test_a_full_disk_is_not_the_mistake_of_a_part() -> None:
    with pytest.raises(OSError, match="No space"), parts.explain_errors("mine.py:part"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_home_of_nobody_is_a_path_that_cannot_be_read() -> None:
    with pytest.raises(parts.OwnPartError, match="can't be read"):
        parts.load_files(["~nobody-has-this-name/mine.py:x"])
