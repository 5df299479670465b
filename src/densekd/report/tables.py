"""Tables as values, independent of the format that they are written in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from densekd.report.statistics import Summary

# Percent, points and variance hold shares from 0 to 1, which are multiplied when shown.
CellKind = Literal["text", "count", "percent", "points", "variance", "seconds"]
MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"
Cell = str | int | float | Summary | None
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Column:
    """A column: its key in CSV, its title for people, and a title above several columns."""

    key: str
    title: str
    kind: CellKind = "text"
    group: str = ""


@dataclass(frozen=True)
class Row:
    """A row; None is an unknown cell. The page filters rows by methods and protocol."""

    cells: tuple[Cell, ...]
    methods: tuple[str, ...] = ()
    protocol: str = ""


@dataclass(frozen=True)
class Table:
    """A table. Its files are called ``name``; ``note`` says how to read it.

    ``heading`` is the key of a column whose values can be shown as headings of rows instead.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    heading: str = ""

    def parts(self) -> list[tuple[str, "Table"]]:
        """A table for each heading, without the column of headings."""
        keys = [column.key for column in self.columns]
        if self.heading not in keys:
            return [("", self)]
        place = keys.index(self.heading)
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rest = replace(row, cells=_without(row.cells, place))
            rows.setdefault(str(row.cells[place]), []).append(rest)
        columns = _without(self.columns, place)
        return [(h, replace(self, columns=columns, rows=tuple(own))) for h, own in rows.items()]

    def without_empty_columns(self) -> "Table":
        """The table without columns in which all cells are None or empty."""
        kept = [
            i
            for i in range(len(self.columns))
            if any(row.cells[i] not in (None, "") for row in self.rows)
        ]
        rows = (replace(row, cells=tuple(row.cells[i] for i in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=tuple(rows))


def cell_text(cell: Cell, kind: CellKind) -> str:
    """A cell as people read it: in percent, with its spread if known, a dash for None."""
    if cell is None:
        return NOTHING
    if isinstance(cell, Summary):
        spread = "" if cell.std is None else f" ± {_number(cell.std, kind)}"
        return f"{_number(cell.mean, kind)}{spread}"
    return cell if isinstance(cell, str) else _number(cell, kind)


def short_duration(seconds: float) -> str:
    """A time in one unit: 34 s, 12.5 min, 1.9 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if abs(seconds) >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if abs(seconds) >= 10 else f"{seconds:.1f} s"


def _number(value: float, kind: CellKind) -> str:
    texts = {
        "percent": f"{100 * value:.2f}",
        "points": f"{100 * value:+.2f}",
        "variance": f"{1e4 * value:.2f}",
        "seconds": short_duration(value),
    }
    return texts.get(kind, f"{value:,}").replace("-", MINUS)


def _without(items: Sequence[_Item], place: int) -> tuple[_Item, ...]:
    return (*items[:place], *items[place + 1 :])
