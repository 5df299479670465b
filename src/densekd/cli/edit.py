"""``densekd forget``, ``rename`` and ``merge``: change what a model was taught."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import AsJson, ModelFolder, argument, command, option
from densekd.display import output

if TYPE_CHECKING:
    from densekd.model.store import Update


@command(
    "densekd forget animals.model cat dog",
    "densekd forget animals.model --photo blurred.jpg",
    "densekd forget animals.model 'Anna Example' --everywhere",
    note="`densekd undo` brings back what was forgotten without --everywhere. Repeat the command "
    "to finish an erasure that was interrupted.",
)
def forget_command(
    model: ModelFolder,
    classes: Annotated[list[str] | None, argument("Classes to forget.", "CLASS")] = None,
    photo: Annotated[
        list[Path] | None,
        option("Forget this photo, given as the file that was taught; repeatable.", metavar="FILE"),
    ] = None,
    everywhere: Annotated[
        bool,
        typer.Option("--everywhere", help="Erase the photos from all steps, irrevocably."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Erase without asking.")] = False,
    json: AsJson = False,
) -> None:
    """Make a model forget classes or photos, in a new step."""
    from densekd.model.frozen.edit import forget
    from densekd.model.frozen.erase import also_erased, erase

    if everywhere and not yes:
        names = output.name_list([*(classes or []), *map(str, photo or [])])
        names = names or "the rest of an interrupted erasure"
        question = [f"Erase {names} from all steps of {model}?"]
        question += map(output.escape_controls, also_erased(model, classes or [], photo or []))
        typer.confirm(" ".join([*question, "This can't be undone."]), abort=True, err=True)
    change = erase if everywhere else forget
    with output.show_warnings(output.console(stderr=True)):
        update = change(model, classes or [], photo or [])
    _show(update, model, json)


@command("densekd rename animals.model 'house cat' cat")
def rename_command(
    model: ModelFolder,
    old: Annotated[str, argument("Class to rename.", "OLD")],
    new: Annotated[str, argument("Its new name.", "NEW")],
    json: AsJson = False,
) -> None:
    """Rename a class of a model, in a new step."""
    from densekd.model.frozen.edit import rename_class

    with output.show_warnings(output.console(stderr=True)):
        update = rename_class(model, old, new)
    _show(update, model, json)


@command("densekd merge animals.model kitten cat")
def merge_command(
    model: ModelFolder,
    name: Annotated[str, argument("Class that becomes part of another.", "CLASS")],
    into: Annotated[str, argument("Class that gets its photos.", "INTO")],
    json: AsJson = False,
) -> None:
    """Merge a class into another, which gets its photos, in a new step."""
    from densekd.model.frozen.edit import merge_classes

    _show(merge_classes(model, name, into), model, json)


def _show(update: "Update", model: Path, json: bool) -> None:
    from densekd.cli.learn import show_update

    if json:
        output.print_json(asdict(update))
    show_update(update, model, output.console(stderr=json))
