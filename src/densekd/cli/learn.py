"""``densekd learn``: teach a model new classes from a folder of images."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from densekd.cli.options import AsJson, ModelFolder, Override, Quiet, argument, command, option
from densekd.cli.signals import resumable
from densekd.display import output

if TYPE_CHECKING:
    from densekd.model.frozen.finetune import Finetuned, FinetuneOptions
    from densekd.model.options import TeachOptions
    from densekd.model.request import Plan
    from densekd.model.store import Update

# At most this many classes are listed as learned least or forgotten most.
_LISTED = 5
_NEW = "For a new model only"


@dataclass(frozen=True)
class LearnOptions:
    """The options of an update; None if not given."""

    known: Annotated[
        Literal["refuse", "add", "replay"],
        typer.Option(
            help="What to do with images of known classes; add and replay learn from them too."
        ),
    ] = "refuse"
    epochs: Annotated[int | None, option("Epochs. Default: chosen by the number of images.")] = None
    budget: Annotated[
        float | None,
        option(
            "Time limit: learn from as many photos, or for as many epochs, as fit into it.",
            metavar="MINUTES",
        ),
    ] = None
    image_size: Annotated[
        int | None,
        option(
            "Train a network on images of this height and width. Default: the median of your "
            "images' shorter sides, at most 64 (224 with a CUDA GPU).",
            panel=_NEW,
        ),
    ] = None
    network: Annotated[
        str | None,
        option(
            "Backbone: lite0 (the default), lite1, lite2 and hf:NAME are pretrained and stay "
            "frozen; others, such as resnet20, are trained on your images.",
            panel=_NEW,
        ),
    ] = None
    method: Annotated[
        str | None,
        option("Train the network by this method; see `densekd methods`.", panel=_NEW),
    ] = None
    override: Override = None
    finetune: Annotated[
        bool,
        typer.Option(
            "--finetune",
            help="Afterwards train the last layers of a pretrained backbone on the images that the "
            "model keeps. The result is kept only if accuracy on held-out photos rises. Takes "
            "minutes.",
        ),
    ] = False
    finetune_all: Annotated[
        bool,
        typer.Option(
            "--finetune-all", help="Like --finetune, but train all layers of the backbone."
        ),
    ] = False

    def given(self) -> "TeachOptions":
        """The options in the form that `densekd.teach` takes."""
        from densekd.model.options import TeachOptions

        return TeachOptions(
            self.image_size,
            self.network,
            self.method,
            self.epochs,
            self.budget,
            self.known,
            tuple(self.override or ()),
        )

    def finetuning(self) -> "FinetuneOptions | None":
        """How to fine-tune; None if that wasn't asked for."""
        if not (self.finetune or self.finetune_all):
            return None
        from densekd.model.frozen.finetune import FinetuneOptions

        return FinetuneOptions("all" if self.finetune_all else "last", budget=self.budget)


@command(
    "densekd learn animals.model photos/animals",
    "densekd learn animals.model photos/birds --budget 10",
    "densekd learn animals.model photos/fish --dry-run",
    "densekd learn animals.model photos/more --known add",
    "densekd learn animals.model --finetune",
    options=LearnOptions,
    note="The first call creates the model; later calls add classes. Repeat the same command to "
    "resume an update that was stopped. `densekd undo` takes an update back.",
)
def learn_command(
    options: LearnOptions,
    model: ModelFolder,
    folder: Annotated[
        Path | None,
        argument(
            "Folder with a sub-folder of images per class, or with train/ and val/ of these; "
            "--finetune works without one.",
            "FOLDER",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only show what would be learned, and how long it would take."
        ),
    ] = False,
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Teach a model new classes from a folder of images, and measure what it forgets.

    The model stays as it is until the update is finished.
    """
    console = output.console(stderr=json)
    with resumable():
        result = _learn(options, model, folder, dry_run, quiet, console)
    if json:
        output.print_json(asdict(result))


def _learn(
    options: LearnOptions,
    model: Path,
    folder: Path | None,
    dry_run: bool,
    quiet: bool,
    console: Console,
) -> "Plan | Update | Finetuned":
    """Do what was asked for: only plan, or teach, fine-tune or both. Returns the last result."""
    from densekd.api.teach import teach
    from densekd.display.learn_progress import learn_display
    from densekd.model.options import TeachOptions

    given, finetuning, began = options.given(), options.finetuning(), time.monotonic()
    if folder is None and finetuning is None:
        raise ValueError("Give a folder of images to learn from after the model, or --finetune.")
    if folder is None and given != TeachOptions(budget=given.budget):
        raise ValueError(
            "Fine-tuning alone takes no option but --budget; give a folder of images too, or leave "
            "out the other options."
        )
    if finetuning is not None and given.trains:
        raise ValueError(
            "--finetune is for a pretrained network, but --epochs, --method, --image-size, -o and "
            "a --network that isn't pretrained are for one that is trained as a whole; leave out "
            "either these or --finetune."
        )
    if finetuning is not None and dry_run:
        raise ValueError("--dry-run can't show what fine-tuning would do; leave out --finetune.")
    if folder is not None and dry_run:
        from densekd.model.teach import preview

        with learn_display(quiet=quiet) as observer:
            plan = preview(model, folder, given, observer)
        show_plan(plan, console)
        return plan
    result: Update | Finetuned
    if folder is not None:
        result = teach(model, folder, given, quiet=quiet)
        show_update(result, model, console)
    if finetuning is not None:
        from densekd.model.frozen.finetune import finetune_model

        with learn_display(quiet=quiet) as observer:
            result = finetune_model(model, finetuning, observer, began)
        show_finetuned(result, model, console)
    return result


def show_plan(plan: "Plan", console: Console) -> None:
    """Print what an update would do."""
    from densekd.display.learn_progress import plan_sentence

    console.print(plan_sentence(plan), soft_wrap=True)
    table = output.table("class", "", numbers=("training images", "test images"))
    for kind, counts in (("new", plan.learned), ("known", plan.replayed)):
        for name, count in counts.items():
            tested = output.number(plan.tested.get(name, 0))
            table.add_row(output.safe(name), kind, output.number(count), tested)
    console.print(table)
    if plan.seconds is not None:
        console.print(
            f"This would take about {output.duration(plan.seconds)}. Nothing was changed."
        )


def show_update(update: "Update", model: Path, console: Console) -> None:
    """Print what an update learned, and what it forgot."""
    did, took = output.safe(output.update_text(update, "image")), output.duration(update.seconds)
    console.print(
        f"Step {update.step}: {output.safe(model)} {did} in {took}. "
        f"It knows {output.count(len(update.classes), 'class', 'classes')}.",
        soft_wrap=True,
    )
    _show_accuracy(update, console)


def show_finetuned(tuned: "Finetuned", model: Path, console: Console) -> None:
    """Print whether fine-tuning helped, and what it forgot."""
    update, place = tuned.update, output.safe(model)
    took = output.duration(update.seconds)
    if tuned.kept:
        images = output.count(update.images, "kept image")
        console.print(
            f"Step {update.step}: {place} was fine-tuned on {images} in {took}, "
            f"{output.count(update.epochs, 'epoch')}.",
            soft_wrap=True,
        )
        _show_accuracy(update, console)
        return
    assert update.before is not None
    before, after = (output.percent(each.all) for each in (update.before, update.after))
    console.print(
        f"Fine-tuning took {took} and did not help: {after} % of the held-out photos are predicted "
        f"correctly, {before} % without it. {place} stays as it was.",
        soft_wrap=True,
    )


def _show_accuracy(update: "Update", console: Console) -> None:
    """Print accuracy before and after an update, and the classes that it forgot."""
    before, after = update.before, update.after
    table = output.table("accuracy on", numbers=("images", "before %", "after %"))
    tested = {each.name: each.tested for each in update.classes}
    new = sum(tested[name] for name in update.learned)
    rows = {"new classes": new, "old classes": sum(tested.values()) - new}
    if update.edit is not None:
        rows = {}
    for title, count in {**rows, "all classes": sum(tested.values())}.items():
        part = title.partition(" ")[0]
        earlier = "-" if before is None else output.percent(getattr(before, part))
        table.add_row(title, output.number(count), earlier, output.percent(getattr(after, part)))
    console.print(table)
    for line in _remarks(update):
        console.print(line, soft_wrap=True)


def _remarks(update: "Update") -> Iterator[str]:
    """Lines on new classes below half their mean accuracy, forgotten classes and untested ones."""
    half = (update.after.new or 0.0) / 2
    weak, lost = dict[str, float](), dict[str, float]()
    for each in update.classes:
        if each.after is None:
            continue
        now = output.percent(each.after)
        if each.name in update.learned and each.after < half:
            weak[f"{output.safe(each.name)} {now}"] = each.after
        if each.before is not None and each.after < each.before:
            then = output.percent(each.before)
            lost[f"{output.safe(each.name)} {then} → {now}"] = each.after - each.before
    for title, found in (("Learned least", weak), ("Forgot most", lost)):
        if worst := sorted(found, key=lambda text: found[text])[:_LISTED]:
            yield f"{title}, in %: {', '.join(worst)}."
    if untested := [each.name for each in update.classes if not each.tested]:
        yield f"Without test images: {output.name_list(untested)}."
