"""Experiment files: the runs of an experiment, its table, and the paper's numbers."""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from densekd.config.settings_tree import flat, given, override, parse_toml, read_text
from densekd.parts import is_reference, short_name
from densekd.sweeps.search import Parameter, Search, check_names, distinct, read_search

JobKind = Literal["runs", "compression"]

# What a table can show: numbers of ``result.json``, and the training time.
MEASURES = (
    "average_incremental_accuracy",
    "average_incremental_accuracy_nme",
    "average_mean_task_accuracy",
    "average_mean_class_accuracy",
    "average_task_incremental_accuracy",
    "learning_accuracy",
    "forgetting",
    "backward_transfer",
    "forward_transfer",
    "accuracy",
    "seconds",
)
# The paper also has the sample variance of ``average_incremental_accuracy`` over the columns.
_PAPER_MEASURES = (*MEASURES, "variance")
_MOST_RUNS = 10_000
# What files for earlier versions may list as ``figures``; only flatness had an effect.
_EARLIER_FIGURES = ("curves", "base-curves", "old-new", "flatness", "memory", "orders")
_WORDS: dict[type, str] = {str: "text", dict: "table", list: "list"}
_Value = TypeVar("_Value", str, dict[str, Any], list[Any])
_KEYS = (
    "title",
    "about",
    "kind",
    "measure",
    "settings",
    "grid",
    "skip",
    "table",
    "flatness",
    "figures",
    "search",
    "paper",
)


@dataclass(frozen=True)
class Target:
    """A number of the paper."""

    where: Mapping[str, Any]  # the settings of the runs that it is about, by dotted key
    value: float  # in percent as printed; variance in percent squared, seconds in seconds
    measure: str  # one of `MEASURES`, or ``variance``


@dataclass(frozen=True)
class Experiment:
    """A grid of runs."""

    name: str  # the file name without suffix
    title: str
    about: str  # what it shows, in a few sentences
    kind: JobKind  # what runs at each point: ``densekd run`` or ``densekd compress``
    measure: str  # what its table shows, one of `MEASURES`
    settings: Mapping[str, Any]  # of all runs, as in a file for ``densekd run --config``
    grid: Mapping[str, tuple[Any, ...]]  # the values of each key that varies, to be combined
    skip: tuple[Mapping[str, Any], ...]  # leaves out points that match all values of an entry
    rows: str  # the key whose values are the rows of the table
    columns: str  # the key whose values are its columns
    flatness: bool  # whether to measure how flat the minimum of each run is
    targets: tuple[Target, ...]  # the paper's numbers
    search: Search | None = None  # the hyper-parameters that are tried at each point of the grid
    text: str = ""  # of the file
    picked: tuple[str, ...] = ()  # the arguments of `with_pick`

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys of the hyper-parameters."""
        return () if self.search is None else tuple(self.search.parameters)

    def points(self) -> list[dict[str, Any]]:
        """List the values of each run, by dotted key, without those that Optuna will choose.

        Raises:
            ValueError: there are no points, or too many.
        """
        runs = math.prod(map(len, self.grid.values())) * (self.search.count if self.search else 1)
        if runs > _MOST_RUNS:
            raise ValueError(f"The grid has {runs:,} runs, more than {_MOST_RUNS:,}; divide it.")
        product = itertools.product(*self.grid.values())
        trials = [{}] if self.search is None else self.search.listed()
        grid = [dict(zip(self.grid, values, strict=True)) for values in product]
        every = [{**point, **trial} for point in grid for trial in trials]
        points = [
            point
            for point in every
            if not any(all(point.get(k) == value for k, value in s.items()) for s in self.skip)
        ]
        if not points:
            raise ValueError("skip leaves no point of the grid; take something out of it.")
        return points

    def with_pick(self, keys: Sequence[str], tasks: int | None = None) -> "Experiment":
        """Turn axes of the grid into hyper-parameters, whose best values are picked.

        With ``tasks``, values are picked by how well they learn that many first tasks.
        """
        keys = [keys] if isinstance(keys, str) else keys
        if not keys and tasks is None:
            return self
        if not keys and self.search is None:
            raise ValueError("The first tasks are for a pick; say of what by --pick KEY.")
        search = self.search or Search("grid", {})
        if keys and search.kind != "grid":
            raise ValueError(f"The search of {self.name} is {search.kind}; leave --pick out.")
        shown = (self.rows, self.columns, "seed", "scenario.order", "method.name")
        pickable = [key for key in self.grid if key not in shown]
        check_names("an axis that can be picked", keys, pickable)
        parameters = {**search.parameters, **{key: Parameter(self.grid[key]) for key in keys}}
        tasks = search.tasks if tasks is None else tasks
        search = dataclasses.replace(search, parameters=parameters, tasks=tasks)
        grid = {key: values for key, values in self.grid.items() if key not in keys}
        picked = (*sorted(keys), *([] if tasks is None else [str(tasks)]))
        return dataclasses.replace(self, grid=grid, search=search, picked=picked)

    def with_axes(self, axes: Mapping[str, list[Any]] | Sequence[str]) -> "Experiment":
        """Replace or add axes, given as a mapping or as texts such as ``scenario.steps=5,10``."""
        axes = axes if isinstance(axes, Mapping) else dict(map(_parse_axis, axes))
        for key in axes:
            if key in self.searched:
                raise ValueError(f"{key} is searched; change it in the section search.")
        grid = {key: _axis(key, values) for key, values in axes.items()}
        return dataclasses.replace(self, grid={**self.grid, **grid})


def read_experiment(file: Path, *, sealed: bool = False) -> Experiment:
    """Read an experiment from a TOML file as described in docs/sweeps.md.

    ``sealed`` says that it is the copy that a sweep keeps in its folder.

    Raises:
        ValueError: one sentence that names the file, the key and its valid values.
    """
    text = read_text(file, sealed=sealed)
    tree = parse_toml(file, text)
    # A sweep keeps a copy in a folder that has the experiment's name.
    name = file.absolute().parent.name if file.name == "experiment.toml" else file.stem
    try:
        made = dataclasses.replace(_experiment(name, tree), text=text)
        if made.flatness and made.kind == "compression" and not sealed:
            raise ValueError("flatness is measured for runs, not for compressions; leave it out.")
        # Earlier versions kept it in their copies, where it has no effect.
        return dataclasses.replace(made, flatness=made.flatness and made.kind == "runs")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def label(point: Mapping[str, Any]) -> str:
    """Describe a point in a few words: ``rdkd steps=5``."""
    return " ".join(
        str(value) if key in ("method", "method.name") else f"{key.rpartition('.')[2]}={value}"
        for key, value in ((key, short_value(value)) for key, value in point.items())
    )


def short_value(value: Any) -> Any:
    """Shorten a float to six digits, which still tell trials apart; a Python value to its name."""
    if str(value).startswith("python:") and is_reference(value):
        return short_name(value)
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _experiment(name: str, tree: Mapping[str, Any]) -> Experiment:
    check_names("a key of an experiment", tree, _KEYS)
    kind = _one_of("kind", tree.get("kind", "runs"), get_args(JobKind))
    usual = "accuracy" if kind == "compression" else MEASURES[0]
    grid = {key: _axis(key, values) for key, values in flat(_get(tree, "grid", dict)).items()}
    if not grid:
        raise ValueError("grid has no key; give those that differ between runs, with a list each.")
    table = _get(tree, "table", dict)
    check_names("a key of table", table, ("rows", "columns"))
    experiment = Experiment(
        name=name,
        title=_get(tree, "title", str).strip(),
        about=_get(tree, "about", str).strip(),
        kind=kind,
        measure=_one_of("measure", tree.get("measure", usual), MEASURES),
        settings=_get(tree, "settings", dict),
        grid=grid,
        skip=tuple(_skipped(tree, grid)),
        rows=_one_of("table.rows", table.get("rows"), list(grid)),
        columns=_one_of("table.columns", table.get("columns"), list(grid)),
        flatness=_flatness(tree),
        targets=(),
        search=read_search(_get(tree, "search", dict)) if "search" in tree else None,
    )
    for key in experiment.searched:
        if key in grid:
            raise ValueError(f"{key} is in the grid and in search.parameters; keep one of them.")
    experiment.points()  # raises if there are none, or too many
    return dataclasses.replace(experiment, targets=tuple(_targets(experiment, tree)))


def _flatness(tree: Mapping[str, Any]) -> bool:
    figures = [_one_of("figures", name, _EARLIER_FIGURES) for name in _get(tree, "figures", list)]
    value = tree.get("flatness", "flatness" in figures)
    if not isinstance(value, bool):
        raise ValueError(f"flatness must be true or false, not {value!r}.")
    return value


def _targets(experiment: Experiment, tree: Mapping[str, Any]) -> Iterator[Target]:
    """Read ``[paper.MEASURE]``: for each row one number, or one for each column."""
    paper = _get(tree, "paper", dict)
    only = flat(_get(paper, "where", dict))
    check_names("a key of the grid", only, experiment.grid)
    rows = {str(value): value for value in experiment.grid[experiment.rows]}
    columns = experiment.grid[experiment.columns]
    for measure in paper:
        if measure == "where":
            continue
        _one_of("paper", measure, _PAPER_MEASURES)
        numbers = _get(paper, measure, dict)
        check_names(f"a value of {experiment.rows}", numbers, rows)
        for row, value in numbers.items():
            where = {**only, experiment.rows: rows[row]}
            if not isinstance(value, list):
                yield Target(where, _number(f"{measure}.{row}", value), measure)
                continue
            if len(value) != len(columns):
                raise ValueError(
                    f"paper.{measure}.{row} has {len(value)} numbers for the {len(columns)} values "
                    f"of {experiment.columns}; write nan where the paper has none."
                )
            for column, entry in zip(columns, value, strict=True):
                number = _number(f"{measure}.{row}", entry)
                if not math.isnan(number):
                    yield Target({**where, experiment.columns: column}, number, measure)


def _skipped(tree: Mapping[str, Any], grid: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in _get(tree, "skip", list):
        if not isinstance(entry, Mapping) or not entry:
            raise ValueError(f"skip has points of the grid in braces, not {entry!r}.")
        values = flat(entry)
        check_names("a key of the grid", values, grid)
        yield values


def _axis(key: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"grid.{key} must be a list of values, not {values!r}.")
    if len(values) > _MOST_RUNS:
        raise ValueError(f"grid.{key} has {len(values):,} values, more than {_MOST_RUNS:,}.")
    return distinct(values)


def _parse_axis(assignment: str) -> tuple[str, list[Any]]:
    """Split ``KEY=VALUES`` into the key and its values: a TOML list, or separated by commas."""
    key, equals, text = assignment.partition("=")
    whole = _value(text)
    values = whole if isinstance(whole, list) else [_value(part) for part in text.split(",")]
    if not equals or not key.strip() or not text.strip() or not values:
        raise ValueError(
            f"An axis is written KEY=VALUE,VALUE, such as seed=1,2,3, not {assignment!r}."
        )
    return key.strip(), values


def _value(text: str) -> Any:
    return given(override({}, [f"value={text}"]), "value")


def _get(tree: Mapping[str, Any], key: str, kind: type[_Value]) -> _Value:
    """The value of a key; a missing list or table is empty, a missing or empty text an error."""
    value = tree.get(key, kind())
    if not isinstance(value, kind) or not str(value).strip():
        raise ValueError(f"{key} must be a {_WORDS[kind]}, not {tree.get(key)!r}.")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"paper.{key} must be a number or a list of numbers, not {value!r}.")
    return float(value)


def _one_of(key: str, value: Any, choices: Collection[str]) -> Any:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        end = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"{key} must be one of {', '.join(choices)}, not {value!r}{end}")
    return value
