import csv
import io

import pytest

from densekd.reports.statistics import Summary
from densekd.reports.tables import (
    Cell,
    CellKind,
    Column,
    Row,
    Table,
    cell_parts,
    short_duration,
    to_csv,
    to_latex,
    to_markdown,
)

THIRD = Summary(1 / 3, 1e-4, 3)
TABLE = Table(
    "mine",
    "What & how",
    "Read_it.",
    (
        Column("method", "method"),
        Column("protocol", "protocol"),
        Column("average", "ours", "percent", "T = 5"),
        Column("paper", "paper", "percent", "T = 5"),
        Column("gap", "gap", "points"),
    ),
    (
        Row(("a|b_<c>", "p 1", THIRD, 0.5, -1 / 6)),
        Row(("d", "p 2", Summary(0.25, None, 1), None, None)),
    ),
)


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        (THIRD, "percent", "33.33 ± 1.00"),
        (Summary(0.5, None, 1), "percent", "50.00"),
        (-0.0123, "points", "\N{MINUS SIGN}1.23"),
        (0.0123, "points", "+1.23"),
        (1.288e-4, "variance", "1.29"),
        (1234, "count", "1,234"),
        (None, "percent", "\N{EN DASH}"),
        ("x-y", "text", "x-y"),
    ],
)
def test_cells_are_read_in_percent(cell: Summary | float | None, kind: CellKind, text: str) -> None:
    assert " ".join(cell_parts(cell, kind)).rstrip() == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.25, "4.2 s"), (34, "34 s"), (89, "89 s"), (90, "1.5 min"), (6840, "1.9 h")],
)
def test_times_are_in_the_unit_that_tells_most(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_csv_has_all_digits() -> None:
    head, first, second = csv.reader(io.StringIO(to_csv(TABLE)))
    assert head == ["method", "protocol", "average", "average_std", "paper", "gap"]
    assert first[:2] == ["a|b_&lt;c&gt;", "p 1"]
    assert [float(cell) for cell in first[2:]] == [1 / 3, 1e-4**0.5, 0.5, -1 / 6]
    assert second == ["d", "p 2", "0.25", "", "", ""]


def test_markdown_keeps_names_apart_from_markup() -> None:
    title, _, head, rule, first, second, _, note = to_markdown(TABLE).splitlines()
    assert title == "**What &amp; how**"
    assert head == "| method | protocol | T = 5: ours | T = 5: paper | gap |"
    assert rule == "| --- | --- | ---: | ---: | ---: |"
    assert first == r"| a\|b\_&lt;c&gt; | p 1 | 33.33 ± 1.00 | 50.00 | " + "\N{MINUS SIGN}16.67 |"
    assert second.startswith("| d | p 2 | 25.00 | \N{EN DASH} |")
    assert note == r"Read\_it."


def test_latex_has_headings_for_protocols_and_groups_of_columns() -> None:
    text = to_latex(TABLE)
    assert r"\caption{What \& how. Read\_it.}" in text
    assert r"\begin{tabular}{@{}lrrr@{}}" in text
    assert r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{T = 5} & \multicolumn{1}{c}{} \\" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"\multicolumn{4}{@{}l}{\emph{p 1}} \\" in text
    assert r"a|b\_$<$c$>$ & 33.33 $\pm$ 1.00 & 50.00 & $-$16.67 \\" in text
    assert text.count(r"\midrule") == 2


def test_columns_that_nothing_is_in_are_left_out() -> None:
    cells: list[list[Cell]] = [["a"], [""], [None], [0.0], [None]]
    columns = zip(TABLE.columns, cells, strict=True)
    table = Table.of("mine", "Mine", "", columns, [("a",)])
    assert [column.key for column in table.columns] == ["method", "paper"]
    assert table.rows == (Row(("a", 0.0), ("a",)),)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
        ("@now", "'@now"),
        (" =1+1", "' =1+1"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("-1.5", "-1.5"),
        ("+3", "+3"),
        ("1e-3", "1e-3"),
        ("-inf", "'-inf"),
        ("a-b=c", "a-b=c"),
        ("\x1b[31m", "\\x1b[31m"),
        ("<img src=x>", "&lt;img src=x&gt;"),
    ],
)
def test_csv_has_no_formula_and_no_markup(text: str, cell: str) -> None:
    table = Table(
        "t", "T", "", (Column("a", "a"), Column("b", "b", "number")), (Row((text, -1.5)),)
    )
    _, (first, second) = csv.reader(io.StringIO(to_csv(table)))
    assert (first, float(second)) == (cell, -1.5)


def test_a_name_can_neither_mark_up_nor_control_a_terminal() -> None:
    name = "<b>\x1b[2J[x](javascript:y)&amp;"
    table = Table("t", name, "", (Column("a", "a"),), (Row((name,)),))
    for text in (to_markdown(table), to_latex(table), to_csv(table)):
        assert "<b>" not in text
        assert "\x1b" not in text
    assert r"\[x\]" in to_markdown(table)
    assert "&amp;amp;" in to_markdown(table)
