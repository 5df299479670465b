"""``densekd history``, ``undo`` and ``info``: the steps of a model."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import AsJson, ModelFolder, ModelStep, command, option
from densekd.display import output

if TYPE_CHECKING:
    from densekd.model.store import HistoryEntry


_TEXT = "what it did"
_NUMBERS = ("classes", "new %", "old %", "all %", "seconds")
# The columns of a history, in order, with their widths; that of the text is the least.
_WIDTHS = {"": 1, "step": 4, "from": 4, "when": 16, _TEXT: 20}
_WIDTHS |= {title: max(len(title), 5) for title in _NUMBERS}
_LEFT_OUT = ("seconds", "from", "classes", "when")  # where the terminal is narrow, in this order
_BETWEEN = 3  # characters from one column to the next


@command("densekd history animals.model")
def history_command(model: ModelFolder, json: AsJson = False) -> None:
    """List the updates of a model, and the accuracy after each."""
    from densekd.model.model import history

    entries = history(model)
    if json:
        output.print_json([asdict(entry) for entry in entries])
        return
    console = output.console()
    titles = history_titles(console.width)
    numbers = [title for title in titles if title in _NUMBERS]
    table = output.table(*(title for title in titles if title not in _NUMBERS), numbers=numbers)
    for column in table.columns:
        column.no_wrap = column.header != _TEXT
    for entry in entries:
        row = _row(entry)
        table.add_row(*(row[title] for title in titles))
    console.print(table)
    typer.echo("→ marks the current step; `densekd undo MODEL --to STEP` goes to another.")


@command("densekd undo animals.model", "densekd undo animals.model --to 0")
def undo_command(
    model: ModelFolder,
    to: Annotated[
        int | None,
        option("Step to go to, which may be one that was undone. Default: the step before."),
    ] = None,
) -> None:
    """Take a model back to an earlier step; nothing is deleted."""
    from densekd.model.model import undo

    entry = undo(model, to)
    names = [each.name for each in entry.update.classes]
    typer.echo(
        f"{output.safe(model)} is now at step {entry.step} and knows "
        f"{output.count(len(names), 'class', 'classes')}: {output.name_list(names)}. "
        f"`densekd history {output.safe(model)}` lists all steps."
    )


@command("densekd info animals.model", "densekd info animals.model --step 0 --json")
def info_command(model: ModelFolder, step: ModelStep = None, json: AsJson = False) -> None:
    """Show a model's classes, network, accuracy and calibration."""
    from densekd.model.model import model_info

    facts = model_info(model, step)
    if json:
        output.print_json(asdict(facts))
        return
    console = output.console()
    after, calibration = facts.entry.update.after, facts.calibration_error
    calibrated = "not tested"
    if calibration is not None:
        calibrated = f"off by {output.percent(calibration)} points on average"
    refused = "no image is ever called unknown"
    if facts.refused is not None:
        share = output.percent(facts.refused)
        refused = f"{share} % of the images of known classes are called unknown"
    rows = {
        "model": f"{output.safe(model)}, step {facts.entry.step} of "
        f"{output.local_time(facts.entry.when)}",
        "method": f"{output.safe(facts.method)} with {output.safe(facts.network)} "
        f"({output.number(facts.parameters)} parameters)",
        "image size": f"{facts.image_size} x {facts.image_size} pixels",
        "images": f"{output.number(facts.exemplars)} to learn from, "
        f"{output.number(facts.tested)} to test on",
        "accuracy": f"{output.percent(after.all)} % of the test images",
        "probabilities": calibrated,
        "unknown": refused,
        "on disk": f"{facts.bytes / 1e6:,.1f} MB with all steps",
    }
    facts_table = output.table("", "")
    facts_table.show_header = False
    for title, text in rows.items():
        facts_table.add_row(title, text)
    console.print(facts_table)
    table = output.table("class", numbers=("step", "to learn from", "to test on", "accuracy %"))
    for each in facts.classes:
        table.add_row(
            output.safe(each.name),
            str(each.step),
            str(each.exemplars),
            str(each.tested),
            output.percent(each.accuracy),
        )
    console.print(table)


def history_titles(width: int) -> list[str]:
    """The columns of a history that a terminal of this width has room for."""
    widths = dict(_WIDTHS)
    for title in _LEFT_OUT:
        if sum(widths.values()) + _BETWEEN * len(widths) <= width:
            break
        del widths[title]
    return [*widths]


def _row(entry: "HistoryEntry") -> dict[str, str]:
    update = entry.update
    return {
        "": "→" if entry.current else "",
        "step": str(entry.step),
        "from": "-" if entry.parent is None else str(entry.parent),
        "when": output.local_time(entry.when),
        _TEXT: output.safe(output.update_text(update, most=2)),
        "classes": output.number(len(update.classes)),
        "new %": output.percent(update.after.new),
        "old %": output.percent(update.after.old),
        "all %": output.percent(update.after.all),
        "seconds": output.number(update.seconds),
    }
