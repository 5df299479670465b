"""Argument checks that several modules share."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a ValueError that lists the ``choices`` unless ``value`` is one of them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")
