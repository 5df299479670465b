"""Text for terminals, spreadsheets and web pages, and the first line of an error."""

import html
from collections.abc import Iterable


def escape_controls(text: str) -> str:
    """Escape characters that could control a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def spreadsheet_text(text: str) -> str:
    """Escape a text for CSV; an apostrophe keeps a spreadsheet from taking it for a formula."""
    formula = text.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
    return "'" * formula + escape_controls(text)


def html_table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """An HTML table of texts, for a notebook."""
    lines = [f"<tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>"]
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without the full stop, or the error's type."""
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
