"""Argument checks, and the sentences of errors, that several modules share."""

import unicodedata


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
