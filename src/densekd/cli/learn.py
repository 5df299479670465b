"""``densekd learn``: teach a model new classes from a folder of images."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from densekd.cli import output
from densekd.cli.run_options import takes
from densekd.cli.signals import resumable

if TYPE_CHECKING:
    from densekd.model.request import Plan
    from densekd.model.settings import TeachOptions
    from densekd.model.store import Update

EXAMPLES = """Examples:

densekd learn animals.model photos/animals

densekd learn animals.model photos/birds --budget 10

densekd learn animals.model photos/fish --dry-run

densekd learn animals.model photos/more --known replay

The first call makes the model, each later one adds the classes in its folder. An update that was
stopped goes on when the same command is given again; `densekd undo` takes one back."""

# At most so many classes are listed of those that lost most.
_LOST = 5


class OnKnown(StrEnum):
    """What is done with a folder that is named like a known class."""

    REFUSE = "refuse"
    REPLAY = "replay"


_NEW = "For a new model; later ones go on with what it has"


@dataclass(frozen=True)
class LearnOptions:
    """What was said on the command line; None is what wasn't."""

    known: Annotated[
        OnKnown,
        typer.Option(help="What to do with folders of known classes: replay learns them too."),
    ] = OnKnown.REFUSE
    epochs: Annotated[
        int | None,
        typer.Option(help="How often each image is seen; chosen by their number otherwise."),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(help="Fit the epochs into so many minutes.", metavar="MINUTES"),
    ] = None
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Height and width that images are brought to; by default their own, up to 64 "
            "without a graphics processor.",
            rich_help_panel=_NEW,
        ),
    ] = None
    network: Annotated[
        str | None, typer.Option(help="Such as resnet20 or resnet18.", rich_help_panel=_NEW)
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help="How old classes are kept; `densekd methods` lists them.", rich_help_panel=_NEW
        ),
    ] = None
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            "-o",
            help="Any other setting that `densekd config show` shows, such as memory.per_class=50.",
            metavar="KEY=VALUE",
        ),
    ] = None

    def given(self) -> "TeachOptions":
        """The same, as teaching takes it."""
        from densekd.model.settings import TeachOptions

        return TeachOptions(
            self.image_size,
            self.network,
            self.method,
            self.epochs,
            self.budget,
            self.known.value,
            tuple(self.override or ()),
        )


@takes(LearnOptions)
def learn(
    options: LearnOptions,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Has a sub-folder of images for each class, or train/ and val/ with such.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, and how long it takes.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print what came of it as JSON, all else on stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Teach a model new classes from a folder of images, and see what it has forgotten.

    Until that is done, the model is what it was.
    """
    from densekd.cli.learn_progress import watching
    from densekd.files import to_json
    from densekd.model.teach import preview, teach

    given, console = options.given(), output.console(stderr=json)
    with resumable() as interrupts, watching(interrupts, quiet=quiet) as observer:
        if dry_run:
            plan = preview(model, folder, given, observer)
        else:
            update = teach(model, folder, given, observer)
    if json:
        typer.echo(to_json(asdict(plan if dry_run else update)), nl=False)
    if dry_run:
        show_plan(plan, console)
    else:
        show_update(update, model, console)


def show_plan(plan: "Plan", console: Console) -> None:
    """What an update would do."""
    from densekd.cli.learn_progress import outline

    console.print(outline(plan), soft_wrap=True)
    table = output.table("class", "", numbers=("to learn from", "to test on"))
    for kind, counts in (("new", plan.learned), ("known", plan.replayed)):
        for name, count in counts.items():
            tested = output.number(plan.tested.get(name, 0))
            table.add_row(output.safe(name), kind, output.number(count), tested)
    console.print(table)
    if plan.seconds is not None:
        console.print(f"It would take about {output.duration(plan.seconds)}; nothing was done.")


def show_update(update: "Update", model: Path, console: Console) -> None:
    """What an update did, and what was forgotten."""
    took = output.duration(update.seconds)
    console.print(
        f"Step {update.step}: {output.safe(model)} learned {output.names(update.learned)} from "
        f"{output.number(update.images)} images in {took} and knows {len(update.classes)} classes.",
        soft_wrap=True,
    )
    before, after = update.before, update.after
    table = output.table("named right of", numbers=("test images", "before %", "after %"))
    tested = {each.name: each.tested for each in update.classes}
    new = sum(tested[name] for name in update.learned)
    rows = {"new classes": new, "old classes": sum(tested.values()) - new}
    for title, count in {**rows, "all classes": sum(tested.values())}.items():
        part = title.partition(" ")[0]
        earlier = "-" if before is None else output.percent(getattr(before, part))
        table.add_row(title, output.number(count), earlier, output.percent(getattr(after, part)))
    console.print(table)
    for line in [*_weak(update), *_lost(update)]:
        console.print(line, soft_wrap=True)


def _weak(update: "Update") -> list[str]:
    """Which new classes are named right less than half as often as new classes are together."""
    mean = update.after.new or 0.0
    weak = {
        each.name: each.after
        for each in update.classes
        if each.name in update.learned and each.after is not None and each.after < mean / 2
    }
    worst = sorted(weak, key=lambda name: weak[name])[:_LOST]
    listed = (f"{output.safe(name)} {output.percent(weak[name])}" for name in worst)
    return [f"Learned least, in %: {', '.join(listed)}."] if worst else []


def _lost(update: "Update") -> list[str]:
    """Which classes are named right less often than before, and which can't be tested."""
    lost = {
        each.name: (each.before, each.after)
        for each in update.classes
        if each.before is not None and each.after is not None and each.after < each.before
    }
    worst = sorted(lost, key=lambda name: lost[name][1] - lost[name][0])[:_LOST]
    lines = []
    if worst:
        listed = (
            f"{output.safe(name)} {output.percent(lost[name][0])} → {output.percent(lost[name][1])}"
            for name in worst
        )
        lines.append(f"Most forgotten, in %: {', '.join(listed)}.")
    untested = [each.name for each in update.classes if not each.tested]
    if untested:
        lines.append(f"Without test images: {output.names(untested)}.")
    return lines
