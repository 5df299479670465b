"""``densekd history``, ``undo`` and ``info``: the steps of a model."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import AsJson, ModelFolder, ModelStep, command, option
from densekd.display import output

if TYPE_CHECKING:
    from densekd.model.store import HistoryEntry


@command("densekd history animals.model")
def history_command(model: ModelFolder, json: AsJson = False) -> None:
    """List the updates of a model, and the accuracy after each."""
    from densekd.model.model import history

    entries = history(model)
    if json:
        output.print_json([asdict(entry) for entry in entries])
        return
    numbers = ("classes", "new %", "old %", "all %", "seconds")
    table = output.table("", "step", "from", "when", "what it did", numbers=numbers)
    for entry in entries:
        table.add_row(*_row(entry))
    output.console().print(table)
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
        "`densekd history` lists all steps."
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
        f"{output.safe(facts.entry.when)}",
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


def _row(entry: "HistoryEntry") -> list[str]:
    update = entry.update
    return [
        "→" if entry.current else "",
        str(entry.step),
        "-" if entry.parent is None else str(entry.parent),
        output.safe(entry.when.replace("T", " ").removesuffix("+00:00") + " UTC"),
        output.safe(output.update_text(update, most=2)),
        output.number(len(update.classes)),
        output.percent(update.after.new),
        output.percent(update.after.old),
        output.percent(update.after.all),
        output.number(update.seconds),
    ]
