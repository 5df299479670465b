"""Tables as values; as CSV for machines, and as Markdown and LaTeX for people."""

import csv
import io
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from densekd.reports.statistics import Summary, group_by
from densekd.text import escape_controls, spreadsheet_text

# Percent, points and variance hold shares from 0 to 1, which are scaled only when shown.
CellKind = Literal["text", "count", "number", "percent", "points", "variance", "seconds"]
_Item = TypeVar("_Item")
Cell = str | int | float | Summary | None
_MINUS, _NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"
_HEADING = "protocol"  # the key of the column whose values are shown as headings of rows
_TEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"±": r"$\pm$", "·": r"$\cdot$", "→": r"$\to$", "<": "$<$", ">": "$>$"},
        **{_MINUS: "$-$", _NOTHING: "--", "\n": " "},
    }
)
_HTML: dict[str, str | int | None] = {"<": "&lt;", ">": "&gt;"}
_MARKDOWN = str.maketrans(
    {**{sign: f"\\{sign}" for sign in "\\|*_`[]"}, **_HTML, "&": "&amp;", "\n": " "}
)


@dataclass(frozen=True)
class Column:
    """A column: its key in CSV, its title for people, and a title above several columns."""

    key: str
    title: str
    kind: CellKind = "text"
    group: str = ""


FilledColumn = tuple[Column, Sequence[Cell]]


@dataclass(frozen=True)
class Row:
    """A row; None is an unknown cell. The page filters rows by methods."""

    cells: tuple[Cell, ...]
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table. Its files are called ``name``; ``note`` says how to read it."""

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        note: str,
        columns: Iterable[FilledColumn],
        methods: Iterable[tuple[str, ...]],
    ) -> "Table":
        """Make a table from columns; drop those whose cells are all None or empty.

        ``methods`` has the methods of each row.
        """
        known = [(c, cells) for c, cells in columns if any(x not in (None, "") for x in cells)]
        rows = map(Row, zip(*(cells for _, cells in known), strict=True), methods)
        return cls(name, title, note, tuple(column for column, _ in known), tuple(rows))

    def parts(self) -> list[tuple[str, "Table"]]:
        """Split the table by protocol, and drop the column of protocols."""
        keys = [column.key for column in self.columns]
        if _HEADING not in keys:
            return [("", self)]
        place = keys.index(_HEADING)
        parts = []
        for heading, rows in group_by(self.rows, lambda row: row.cells[place]).items():
            rest = (Row(_without(row.cells, place), row.methods) for row in rows)
            part = replace(self, columns=_without(self.columns, place), rows=tuple(rest))
            parts.append((str(heading), part))
        return parts


def to_csv(table: Table) -> str:
    """The table as CSV, with all digits: shares from 0 to 1, seconds, standard deviations apart.

    A text that a spreadsheet would compute, such as ``=1+1``, begins with an apostrophe.
    """
    columns: list[list[Cell]] = []
    every = zip(*(row.cells for row in table.rows), strict=True)
    for column, cells in zip(table.columns, every, strict=True):
        columns.append([column.key, *map(cell_value, cells)])
        spreads = [cell.std if isinstance(cell, Summary) else None for cell in cells]
        if any(spread is not None for spread in spreads):
            columns.append([f"{column.key}_std", *spreads])
    stream = io.StringIO()
    lines = ([_csv(cell) for cell in line] for line in zip(*columns, strict=True))
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()


def to_markdown(table: Table) -> str:
    """The table in Markdown, with its title and note."""
    titles = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    rules = ["---" if c.kind == "text" else "---:" for c in table.columns]
    texts = [titles, *(_texts(table, row) for row in table.rows)]
    first, *rest = [f"| {' | '.join(map(_markdown, line))} |" for line in texts]
    lines = [f"**{_markdown(table.title)}**", "", first, f"| {' | '.join(rules)} |", *rest]
    lines += ["", _markdown(table.note)] if table.note else []
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """The table in LaTeX, for the package ``booktabs``."""
    parts = table.parts()
    columns = parts[0][1].columns
    spec = "".join("l" if c.kind == "text" else "r" for c in columns)
    caption = f"{_latex(table.title)}. {_latex(table.note)}".strip()
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{@{{}}{spec}@{{}}}}",
        r"\toprule",
        *_tex_groups(columns),
        _tex_row(c.title for c in columns),
    ]
    for heading, part in parts:
        title = rf"\multicolumn{{{len(columns)}}}{{@{{}}l}}{{\emph{{{_latex(heading)}}}}} \\"
        lines += [r"\midrule", *([title] if heading else [])]
        lines += [_tex_row(_texts(part, row)) for row in part.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def header_spans(columns: tuple[Column, ...]) -> list[tuple[str, int]]:
    """The titles above neighbouring columns, and how many columns each spans."""
    groups = itertools.groupby(columns, key=lambda column: column.group)
    return [(group, len(list(members))) for group, members in groups]


def cell_value(cell: Cell) -> str | float | None:
    """A cell without its spread."""
    return cell.mean if isinstance(cell, Summary) else cell


def cell_parts(cell: Cell, kind: CellKind) -> tuple[str, str]:
    """Format a cell for people: shares in percent, a dash for None; and its spread, if known."""
    if isinstance(cell, Summary):
        spread = "" if cell.std is None else f"± {_number(cell.std, kind)}"
        return _number(cell.mean, kind), spread
    if cell is None:
        return _NOTHING, ""
    return cell if isinstance(cell, str) else _number(cell, kind), ""


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
        "number": f"{value:.4g}",
    }
    return texts.get(kind, f"{value:,}").replace("-", _MINUS)


def _texts(table: Table, row: Row) -> list[str]:
    cells = zip(row.cells, table.columns, strict=True)
    return [" ".join(filter(None, cell_parts(cell, column.kind))) for cell, column in cells]


def _tex_groups(columns: tuple[Column, ...]) -> list[str]:
    if not any(column.group for column in columns):
        return []
    cells, rules, first = [], [], 1
    for group, count in header_spans(columns):
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{_latex(group)}}}")
        rules += [rf"\cmidrule(lr){{{first}-{first + count - 1}}}"] if group else []
        first += count
    return [" & ".join(cells) + r" \\", *rules]


def _tex_row(texts: Iterable[str]) -> str:
    return " & ".join(map(_latex, texts)) + r" \\"


def _latex(text: str) -> str:
    return escape_controls(text.translate(_TEX))


def _markdown(text: str) -> str:
    return escape_controls(text.translate(_MARKDOWN))


def _csv(cell: Cell) -> Cell:
    """A cell for CSV: numbers unchanged, even if they are text; other text made harmless."""
    if not isinstance(cell, str) or _is_number(cell):
        return cell
    return spreadsheet_text(cell.translate(str.maketrans(_HTML)))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and text.isascii() and text.isprintable()
    except ValueError:
        return False


def _without(items: tuple[_Item, ...], place: int) -> tuple[_Item, ...]:
    return (*items[:place], *items[place + 1 :])
