"""``densekd history``, ``undo`` and ``info``: what became of a model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli import output

if TYPE_CHECKING:
    from densekd.model.store import HistoryEntry

HISTORY_EXAMPLES = "Example:\n\ndensekd history animals.model"
UNDO_EXAMPLES = """Examples:

densekd undo animals.model

densekd undo animals.model --to 0"""
INFO_EXAMPLES = """Examples:

densekd info animals.model

densekd info animals.model --step 0 --json"""

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def history(model: ModelFolder, json: AsJson = False) -> None:
    """List the states that a model has been in, and what each update brought."""
    from densekd.files import to_json
    from densekd.model.model import history as entries_of

    entries = entries_of(model)
    if json:
        typer.echo(to_json([asdict(entry) for entry in entries]), nl=False)
        return
    numbers = ("classes", "new %", "old %", "all %", "seconds")
    table = output.table("", "step", "from", "when", "learned", numbers=numbers)
    for entry in entries:
        table.add_row(*_row(entry))
    output.console().print(table)
    typer.echo(
        "→ is the state that the model is in; `densekd undo MODEL --to STEP` chooses another."
    )


def undo(
    model: ModelFolder,
    to: Annotated[
        int | None,
        typer.Option(help="The step to go to, also one that was undone; the one before otherwise."),
    ] = None,
) -> None:
    """Take a model back to an earlier state; nothing is deleted."""
    from densekd.model.model import undo as go_back

    entry = go_back(model, to)
    names = [each.name for each in entry.update.classes]
    typer.echo(
        f"{output.safe(model)} is in the state of step {entry.step} and knows {len(names)} "
        f"classes: {output.names(names)}. `densekd history` lists all states."
    )


def info(
    model: ModelFolder,
    step: Annotated[
        int | None, typer.Option(help="An earlier step; the state it is in otherwise.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a model knows, what it is made of, and how far it can be trusted."""
    from densekd.files import to_json
    from densekd.model.model import model_info

    facts = model_info(model, step)
    if json:
        typer.echo(to_json(asdict(facts)), nl=False)
        return
    console = output.console()
    after, calibration = facts.entry.update.after, facts.calibration_error
    calibrated = "not tested"
    if calibration is not None:
        calibrated = f"off by {output.percent(calibration)} points on average"
    rows = {
        "model": f"{output.safe(model)}, step {facts.entry.step} of {facts.entry.when}",
        "made by": f"{facts.method} with {facts.network} "
        f"({output.number(facts.parameters)} parameters)",
        "images": f"{facts.image_size} x {facts.image_size} pixels",
        "keeps": f"{output.number(facts.exemplars)} images to rehearse, "
        f"{output.number(facts.tested)} to test on",
        "named right": f"{output.percent(after.all)} % of these",
        "probabilities": calibrated,
        "on disk": f"{facts.bytes / 1e6:,.1f} MB with all steps",
    }
    about_table = output.table("", "")
    about_table.show_header = False
    for title, text in rows.items():
        about_table.add_row(title, text)
    console.print(about_table)
    table = output.table("class", numbers=("step", "to rehearse", "to test on", "named right %"))
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
        entry.when.replace("T", " ").removesuffix("+00:00") + " UTC",
        output.names(update.learned, most=2),
        output.number(len(update.classes)),
        output.percent(update.after.new),
        output.percent(update.after.old),
        output.percent(update.after.all),
        output.number(update.seconds),
    ]
