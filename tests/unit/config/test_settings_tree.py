import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from densekd.config.schema import resolve
from densekd.config.settings_tree import digest, merge, nested, override, read_toml, toml_lines
from densekd.files import write_sealed_text


def test_later_trees_come_first() -> None:
    below = {"seed": 1, "data": {"source": "digits", "dir": "a"}, "memory": {"total": 9}}
    above = {"data": {"dir": None}, "memory": {"per_class": 3}, "epochs": 2}
    before = json.dumps([below, above])
    assert merge(below, above) == {
        "seed": 1,
        "data": {"source": "digits", "dir": None},
        "memory": {"total": None, "per_class": 3},
        "epochs": 2,
    }
    assert json.dumps([below, above]) == before
    assert merge() == {}
    assert merge({"data": 5}, {"data": {"dir": "a"}}) == {"data": {"dir": "a"}}
    assert merge({"data": {"dir": "a"}}, {"data": 5}) == {"data": 5}
    # What one tree contradicts itself in stays, to be refused.
    both = {"scenario": {"steps": 1, "increment": 1}}
    assert merge(both)["scenario"] == {"steps": 1, "increment": 1, "tasks": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("[30, 60]", [30, 60]),
        ("'natural'", "natural"),
        ('"5"', "5"),
        ("natural", "natural"),
        ("folder:a=b", "folder:a=b"),
        ("30%", "30%"),
        ("", ""),
        ("none", None),
        ("None", None),
        ("2020-01-02", "2020-01-02"),
        ("5\nb = 6", "5\nb = 6"),
    ],
)
def test_overrides_are_read_as_toml_or_text(text: str, value: Any) -> None:
    for assignment in (f"a.b={text}", f" a . b = {text} "):
        overridden = override({"a": {"b": 1, "c": 2}, "d": 3}, [assignment])
        assert overridden == {"a": {"b": value, "c": 2}, "d": 3}
        assert type(overridden["a"]["b"]) is type(value)


def test_overrides_come_after_the_tree_and_one_after_the_other() -> None:
    tree = {"memory": {"per_class": 20}, "seed": 1}
    assert override(tree, []) == {"memory": {"per_class": 20, "total": None}, "seed": 1}
    assert override(tree, ["seed=2", "seed=3", "memory.total=9"]) == {
        "memory": {"per_class": None, "total": 9},
        "seed": 3,
    }
    assert tree == {"memory": {"per_class": 20}, "seed": 1}
    assert override({}, ["memory={per_class = 5}"])["memory"]["per_class"] == 5
    with pytest.raises(ValueError, match="either per_class or total"):
        resolve(override({}, ["memory.total=9", "memory.per_class=9"]))


def test_no_value_is_lost_to_another_key() -> None:
    for values in ({"a": 5, "a.b": 6}, {"a.b": 6, "a": 5}):
        with pytest.raises(ValueError, match=r"a can't be 5 beside a\.b"):
            nested(values)
        with pytest.raises(ValueError, match=r"a can't be 5 beside a\.b"):
            override({}, [f"{key}={value}" for key, value in values.items()])
    assert nested({"a": {"b": 1}, "a.c": 2, "d": None, "d.e.f": 3}) == {
        "a": {"b": 1, "c": 2},
        "d": {"e": {"f": 3}},
    }
    assert override({}, ["a.b=1", "a={c = 2}"]) == {"a": {"b": 1, "c": 2}}
    assert override({}, ["a.b=1", "a={b = 2}", "a.b=3"]) == {"a": {"b": 3}}


def test_any_key_can_be_written() -> None:
    tree = {"λ": 1, "a b": {"c.d": "\x7f", "e-f_1": [True]}}
    assert tomllib.loads("\n".join(toml_lines(tree))) == tree


@pytest.mark.parametrize("assignment", ["scenario.steps", "=5", "scenario.=5", ".steps=5", ""])
def test_an_override_is_key_and_value(assignment: str) -> None:
    with pytest.raises(ValueError, match=r"KEY=VALUE, such as scenario\.steps=5, not '.*'\.$"):
        override({}, [assignment])


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbfepochs = '30%'\r\n[scenario]\r\nsteps = 2\r\n")
    assert read_toml(path) == {"epochs": "30%", "scenario": {"steps": 2}}


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ValueError, match=rf"^There is no configuration file {path}\.$"):
        read_toml(path)
    path.write_text("seed = 1\nsteps 5\n")
    with pytest.raises(ValueError, match=rf"^{path} is not TOML: .* \(at line 2, column 7\)\.$"):
        read_toml(path)
    path.write_bytes(b"seed = '\xff'")
    with pytest.raises(ValueError, match=rf"^{path} can't be read as a text file \(.*\)\.$"):
        read_toml(path)
    with pytest.raises(ValueError, match=rf"^{tmp_path} can't be read as a text file \(.*\)\.$"):
        read_toml(tmp_path)


def test_digests_stay_and_do_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1, 2.5, None, "é"]}) == "cd12671bab98"
    assert digest({"b": 1, "a": {"d": 2, "c": 3}}) == digest({"a": {"c": 3, "d": 2}, "b": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([1, 2]) != digest([2, 1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(float("nan"))


def test_a_file_that_nobody_means_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("a = " + "[" * 200_000)
    with pytest.raises(ValueError, match="nested too deep"):
        read_toml(path)
    path.write_text("a" + ".a" * 3000 + " = 1")
    with pytest.raises(ValueError, match="nested too deep"):
        read_toml(path)
    path.write_text("seed = " + "9" * 5000)
    with pytest.raises(ValueError, match=rf"^{path} is not TOML: .*digits"):
        read_toml(path)
    with pytest.raises(ValueError, match="more than"):
        read_toml(Path("/dev/zero"))


def test_settings_of_a_run_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    write_sealed_text(path, "seed = 5\n")
    assert read_toml(path, sealed=True) == read_toml(path) == {"seed": 5}
    path.write_text(path.read_text().replace("= 5", "= 6"))
    assert read_toml(path) == {"seed": 6}
    with pytest.raises(ValueError, match=r"config\.toml is damaged"):
        read_toml(path, sealed=True)
