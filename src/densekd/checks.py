"""Argument checks and error messages that several modules share."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a ValueError that lists the ``choices`` unless ``value`` is one of them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")


def escape_controls(text: str) -> str:
    """A text in which characters that could control a terminal are escaped."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def spreadsheet_text(text: str) -> str:
    """A text for CSV: it begins with an apostrophe if a spreadsheet would take it for a formula."""
    formula = text.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
    return "'" * formula + escape_controls(text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without the full stop, or the error's type."""
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
