"""Tables as CSV for machines, and as Markdown and LaTeX for people."""

import csv
import io
import itertools
import re

from densekd.report.statistics import Summary
from densekd.report.tables import MINUS, NOTHING, Cell, Column, Row, Table, cell_text

_TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    NOTHING: "--",
    "·": r"$\cdot$",
    "→": r"$\to$",
    "<": r"$<$",
    ">": r"$>$",
}


def to_csv(table: Table) -> str:
    """All digits: shares from 0 to 1, seconds, and standard deviations in columns of their own."""
    columns = range(len(table.columns))
    spread = [any(_has_spread(row.cells[i]) for row in table.rows) for i in columns]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    headers = (
        [c.key, f"{c.key}_std"] if s else [c.key]
        for c, s in zip(table.columns, spread, strict=True)
    )
    writer.writerow(itertools.chain.from_iterable(headers))
    for row in table.rows:
        fields = (_fields(cell, s) for cell, s in zip(row.cells, spread, strict=True))
        writer.writerow(itertools.chain.from_iterable(fields))
    return stream.getvalue()


def to_markdown(table: Table) -> str:
    """The table in Markdown, with its title and note."""
    titles = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    rules = ["---" if c.kind == "text" else "---:" for c in table.columns]
    lines = [_piped(map(_markdown, titles)), _piped(rules)]
    lines += [_piped(map(_markdown, _texts(table, row))) for row in table.rows]
    note = f"\n{_markdown(table.note)}\n" if table.note else ""
    return f"**{_markdown(table.title)}**\n\n" + "\n".join(lines) + f"\n{note}"


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
        _tex_row([c.title for c in columns]),
        *(line for heading, part in parts for line in _tex_part(heading, part)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def header_spans(columns: tuple[Column, ...]) -> list[tuple[str, int]]:
    """The titles above neighbouring columns, and how many columns each spans."""
    groups = itertools.groupby(columns, key=lambda column: column.group)
    return [(group, len(list(members))) for group, members in groups]


def _tex_groups(columns: tuple[Column, ...]) -> list[str]:
    if not any(column.group for column in columns):
        return []
    cells, rules, first = [], [], 1
    for group, count in header_spans(columns):
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{_latex(group)}}}")
        rules += [rf"\cmidrule(lr){{{first}-{first + count - 1}}}"] if group else []
        first += count
    return [" & ".join(cells) + r" \\", *rules]


def _tex_part(heading: str, part: Table) -> list[str]:
    width = len(part.columns)
    title = rf"\multicolumn{{{width}}}{{@{{}}l}}{{\emph{{{_latex(heading)}}}}} \\"
    rows = [_tex_row(_texts(part, row)) for row in part.rows]
    return [r"\midrule", *([title] if heading else []), *rows]


def _tex_row(texts: list[str]) -> str:
    return " & ".join(map(_latex, texts)) + r" \\"


def _latex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text.replace("\n", " "))


def _markdown(text: str) -> str:
    return re.sub(r"([\\|<>*_`])", r"\\\1", text.replace("\n", " "))


def _piped(texts: "map[str] | list[str]") -> str:
    return f"| {' | '.join(texts)} |"


def _texts(table: Table, row: Row) -> list[str]:
    return [cell_text(cell, c.kind) for cell, c in zip(row.cells, table.columns, strict=True)]


def _has_spread(cell: Cell) -> bool:
    return isinstance(cell, Summary) and cell.std is not None


def _fields(cell: Cell, spread: bool) -> list[str | int | float | None]:
    value, std = (cell.mean, cell.std) if isinstance(cell, Summary) else (cell, None)
    return [value, std] if spread else [value]
