import io
import logging

import pytest
from rich.console import Console

from densekd.display import output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (308, "5 min 8 s"),
        (3599.6, "1 h 0 min"),
        (9000, "2 h 30 min"),
        (100 * 3600, "100 h 0 min"),
    ],
)
def test_durations_are_in_units_that_matter(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_names_beyond_the_first_few_are_counted() -> None:
    assert output.name_list(["cat"]) == "cat"
    assert output.name_list(["cat", "dog", "fox", "owl"]) == "cat, dog, fox, owl"
    assert output.name_list(["cat", "dog", "fox", "owl", "a\nt"]) == "cat, dog, fox and 2 more"
    assert (
        output.name_list(["a\nt", "dog"] + ["fox"] * 1499, most=2) == "'a\\nt', dog and 1,499 more"
    )


def test_shares_and_percents() -> None:
    assert output.share(300, 1200) == "300 of 1,200 (25%)"
    assert output.share(300, 0) == "300"
    assert output.percent(0.7125) == "71.2"
    assert output.percent(None) == output.percent(float("nan")) == "-"


def test_warnings_become_lines_and_the_rest_is_left_out() -> None:
    screen = Console(file=io.StringIO(), width=40, markup=False)
    logger = logging.getLogger("densekd.somewhere")
    with output.show_warnings(screen):
        logger.warning("The file [b]%s[/b] is damaged; the one before it is used.", "x.json")
        logger.info("nobody needs to know")
    logger.warning("too late")
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue() == (
        "Warning: The file [b]x.json[/b] is damaged; the one before it is used.\n"
    )
