"""Tables as values, whatever they are written as."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from densekd.report.statistics import Summary

# What a column holds: text, counts, shares of images and their differences, in percent when shown,
# variances of shares, and seconds.
CellKind = Literal["text", "count", "percent", "points", "variance", "seconds"]
# As print has them.
MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"
_Item = TypeVar("_Item")
Cell = str | int | float | Summary | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        key: what it is called in files for machines.
        title: what it is called for people.
        kind: what it holds.
        group: a title above several columns, if there is one.
    """

    key: str
    title: str
    kind: CellKind = "text"
    group: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        cells: one for each column; None is what isn't known.
        methods: the methods that it is about, so that it can be found by them.
        protocol: the protocol that it is about, if it is about one.
    """

    cells: tuple[Cell, ...]
    methods: tuple[str, ...] = ()
    protocol: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name: of its files.
        title: what it shows.
        note: how to read it.
        columns: from left to right.
        rows: from top to bottom.
        heading: the key of a column whose values are headings of rows, where there is room for
            such; empty if there is none.
    """

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    heading: str = ""

    def parts(self) -> list[tuple[str, "Table"]]:
        """The headings, each with a table of its rows that has no column for them."""
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


def shown(cell: Cell, kind: CellKind) -> str:
    """A cell as it is read: in percent, with the spread if there is one, a dash for nothing."""
    if cell is None:
        return NOTHING
    if isinstance(cell, Summary):
        spread = "" if cell.std is None else f" ± {_number(cell.std, kind)}"
        return f"{_number(cell.mean, kind)}{spread}"
    return cell if isinstance(cell, str) else _number(cell, kind)


def plain(cell: Cell) -> str | int | float | None:
    """A cell as it is sorted: a mean for several values."""
    return cell.mean if isinstance(cell, Summary) else cell


def duration(seconds: float) -> str:
    """A time in the unit that tells most: 34 s, 12.5 min, 1.9 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if abs(seconds) >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if abs(seconds) >= 10 else f"{seconds:.1f} s"


def _number(value: float, kind: CellKind) -> str:
    texts = {
        "percent": f"{100 * value:.2f}",
        "points": f"{100 * value:+.2f}",
        "variance": f"{1e4 * value:.2f}",
        "seconds": duration(value),
    }
    return texts.get(kind, f"{value:,}").replace("-", MINUS)


def _without(items: tuple[_Item, ...], place: int) -> tuple[_Item, ...]:
    return (*items[:place], *items[place + 1 :])


def filled(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Sequence[Column], list[Row]]:
    """The table without columns that nothing is in."""
    kept = [i for i in range(len(columns)) if any(row.cells[i] not in (None, "") for row in rows)]
    fewer = [Row(tuple(r.cells[i] for i in kept), r.methods, r.protocol) for r in rows]
    return [columns[i] for i in kept], fewer
