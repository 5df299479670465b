"""``densekd check``: what is damaged in a model, a run or a sweep."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from densekd.cli.options import argument, command
from densekd.display import output


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
            help="Move damaged files to the folder set-aside in FOLDER. If a model's current step "
            "is damaged, its newest intact step becomes current. If a run's files were moved, "
            "repeat the run to write them again.",
        ),
    ] = False,
) -> None:
    """Read all files of a model, a run or a sweep, and list what is damaged."""
    from densekd.model.pointer import POINTER_FILE, step_numbers
    from densekd.runs.check import is_run_folder

    if is_run_folder(folder):
        found = _run(folder, repair)
    elif step_numbers(folder) or (folder / POINTER_FILE).exists():
        found = _model(folder, repair)
    else:
        raise ValueError(f"{folder} is no folder of one model, run or sweep; check its name.")
    for problem in found.problems:
        typer.echo(output.escape_controls(problem))
    if found.aside is not None:
        typer.echo(f"Damaged files are now in {output.safe(found.aside)}.")
    typer.echo(f"{output.safe(folder)}: {found.summary}.")
    if found.problems and not repair:
        typer.echo(f"`densekd check {output.safe(folder)} --repair` sets damaged files aside.")
    if found.problems:
        raise typer.Exit(1)


class _Found(NamedTuple):
    """Sentences on what is damaged, the folder it was moved to, and what is intact."""

    problems: tuple[str, ...]
    aside: Path | None
    summary: str


def _model(folder: Path, repair: bool) -> _Found:
    from densekd.model.check import check_model, repair_model

    aside = repair_model(folder)[1] if repair else None
    found = check_model(folder)
    parts = [f"{output.count(len(found.intact), 'step')} intact"]
    if more := len(found.opens) - len(found.intact):
        parts.append(f"{output.count(more, 'step')} that can only predict")
    current = f"the current one is {found.current}"
    if found.current is None:
        current = "the current one is unknown"
    elif found.current not in found.intact:
        current = f"the current one, {found.current}, is damaged"
    return _Found(found.problems, aside, f"{', '.join(parts)}; {current}")


def _run(folder: Path, repair: bool) -> _Found:
    from densekd.runs.check import check_run, repair_run

    aside = repair_run(folder)[1] if repair else None
    found = check_run(folder)
    result = {
        "intact": "; its result is intact",
        "damaged": "; its result is damaged; repeat the run to write it again",
        "missing": "; it is unfinished and has no result yet, so repeat it to finish it",
        None: "",
    }[found.result]
    return _Found(found.problems, aside, f"{output.count(found.intact, 'file')} intact{result}")
