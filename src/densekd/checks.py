"""Argument checks, error messages and text escaping that several modules share."""

import html
import unicodedata
from collections.abc import Iterable


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a ValueError that lists the ``choices`` unless ``value`` is one of them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")


def missing_extra(user: str, extra: str, instead: str = "") -> ValueError:
    """The error if ``user`` needs packages that only an extra of this package installs."""
    return ValueError(
        f"{user} needs packages that aren't installed: `pip install 'densekd[{extra}]'`{instead}."
    )


def is_folder_name(name: str) -> bool:
    """Whether a text can name one folder: a visible character, and no slash or control character.

    ``isprintable`` would also refuse the joiners within emoji and some scripts, and new emoji.
    """
    kinds = {unicodedata.category(letter) for letter in name}
    fit = not kinds & {"Cc", "Cs", "Zl", "Zp"} and bool(kinds - {"Cf", "Zs"})
    return fit and name not in (".", "..") and not {*name} & {"/", "\\"}


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
