"""``densekd check``: what is damaged in a model or in a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import argument, command
from densekd.display import output

if TYPE_CHECKING:
    from densekd.model.check import ModelCheck
    from densekd.runs.check import RunCheck


@command(
    "densekd check animals.model",
    "densekd check animals.model --repair",
    "densekd check runs/digits-rdkd-0123456789ab",
    note="Exits with code 1 if something is damaged. `--repair` deletes nothing.",
    name="check",
)
def check_folder_command(
    folder: Annotated[Path, argument("Folder of a model, a run or a sweep.", "FOLDER")],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Move what can't be read to the folder set-aside in FOLDER. A model goes to its "
            "newest intact step if the current one isn't; a run that is repeated makes again what "
            "was moved.",
        ),
    ] = False,
) -> None:
    """Read all files of a model or a run, and say which are intact."""
    from densekd.runs.check import is_run_folder

    damaged = _run(folder, repair) if is_run_folder(folder) else _model(folder, repair)
    if damaged and not repair:
        typer.echo(f"`densekd check {output.safe(folder)} --repair` sets aside what can't be read.")
    if damaged:
        raise typer.Exit(1)


def _model(folder: Path, repair: bool) -> bool:
    """Check a model; whether something is damaged."""
    from densekd.model.check import check_model, repair_model

    place = None
    if repair:
        _, place = repair_model(folder)
    found = check_model(folder)
    _show(found.problems, place)
    parts = [f"{output.count(len(found.intact), 'step')} intact"]
    if len(found.opens) > len(found.intact):
        more = len(found.opens) - len(found.intact)
        parts.append(f"{output.count(more, 'step')} able to predict only")
    typer.echo(f"{output.safe(folder)}: {', '.join(parts)}; {_current(found)}.")
    return bool(found.problems)


def _run(folder: Path, repair: bool) -> bool:
    """Check a run or a sweep; whether something is damaged."""
    from densekd.runs.check import check_run, repair_run

    place = None
    if repair:
        _, place = repair_run(folder)
    found = check_run(folder)
    _show(found.problems, place)
    files = f"{output.count(found.intact, 'file')} intact"
    typer.echo(f"{output.safe(folder)}: {files}{_result(found)}.")
    return bool(found.problems)


def _show(problems: tuple[str, ...], place: Path | None) -> None:
    for problem in problems:
        typer.echo(output.escape_controls(problem))
    if place is not None:
        typer.echo(f"What can't be read is now in {output.safe(place)}.")


def _result(found: "RunCheck") -> str:
    words = {
        "intact": "; its result is intact",
        "damaged": "; its result is damaged, and repeating the run writes it again",
        "missing": "; it is unfinished and has no result yet, so repeat it to finish it",
    }
    return "" if found.result is None else words[found.result]


def _current(found: "ModelCheck") -> str:
    if found.current is None:
        return "which one is current can't be told"
    if found.current in found.intact:
        return f"the current one is {found.current}"
    return f"the current one, {found.current}, is damaged"
