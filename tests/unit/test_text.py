import pytest

from densekd.text import escape_controls, first_line, html_table, spreadsheet_text


def test_controls_are_escaped_and_other_text_is_kept() -> None:
    assert escape_controls("Ä 猫\nb") == "Ä 猫\nb"
    assert escape_controls("\x1b[2J\r\u202e") == "\\x1b[2J\\r\\u202e"


@pytest.mark.parametrize("text", ["=1+1", "  @SUM(A1)", "-2", "+2", "\t=1", "\r=1"])
def test_no_text_is_a_formula_in_a_spreadsheet(text: str) -> None:
    assert spreadsheet_text(text).startswith("'")
    assert spreadsheet_text(f"a{text}")[:1] == "a"


def test_cells_of_a_table_are_escaped() -> None:
    assert html_table(["name"], [["<b>"]]) == (
        "<table><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table>"
    )


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("wrong.\nmore")) == "wrong"
    assert first_line(ValueError()) == "ValueError"
