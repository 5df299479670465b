"""``densekd compress``: train a small network to imitate a large one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from densekd.cli import options
from densekd.cli.options import command, option
from densekd.cli.run import print_result
from densekd.cli.signals import resumable
from densekd.display import output

if TYPE_CHECKING:
    from densekd.compression.config import CompressionConfig


@dataclass(frozen=True)
class CompressOptions:
    """The options of a compression; None if not given."""

    method: Annotated[
        str | None, option("kd, rdkd (the default), fdkd, or alone to train without a teacher.")
    ] = None
    data: options.SourceOption = None
    data_dir: options.DataDir = None
    teacher: Annotated[str | None, option("The large network, such as wrn-40-4.")] = None
    student: Annotated[str | None, option("The small network, such as resnet32.")] = None
    teacher_file: Annotated[
        Path | None,
        option(
            "Use a trained teacher: the folder of an earlier compression, or a folder in its "
            "teachers/. Default: train one.",
            metavar="FOLDER",
        ),
    ] = None
    groups: Annotated[
        int | None,
        option(
            "Number of blocks to divide the classes into; groups are made of them. Default: 10."
        ),
    ] = None
    epochs: options.Epochs = None
    seed: options.Seed = None
    override: options.Override = None

    def resolve(self) -> "CompressionConfig":
        """The settings from the options, changed by the overrides."""
        from densekd.compression.config import resolve_compression
        from densekd.config.keywords import settings_of
        from densekd.config.settings_tree import override

        given = {key: value for key, value in vars(self).items() if key != "override"}
        keys = {**{key: key for key in given}, "data": "data.source", "data_dir": "data.dir"}
        return resolve_compression(override(settings_of(given, keys), self.override or []))


@command(
    "densekd compress --method fdkd",
    "densekd compress --data cifar100 --teacher wrn-40-4 --student resnet32 --method rdkd "
    "--epochs 30%",
    "densekd compress --method kd --student resnet14 --teacher-file runs/compress-fdkd-012345678",
    "densekd compress --method rdkd -o options.whole=true -o training.student.lr=0.1",
    options=CompressOptions,
    note="Repeat the same command to resume a compression that was stopped. Compressions in one "
    "folder share their teachers. compression.toml in each run folder has all settings.",
)
def compress_command(
    settings: CompressOptions,
    out: options.RunsFolder = Path("runs"),
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a small network to imitate a large one, on all classes at once."""
    from densekd.compression.compress import compress
    from densekd.display.run_progress import run_display

    config = settings.resolve()
    with resumable(), run_display(config, quiet=quiet) as observer:
        result = compress(config, out, observer)
    print_result(result, json, _show_result)


def _show_result(result: Mapping[str, Any], console: Console) -> None:
    table = output.table("", "network", "learned by", numbers=("accuracy %", "epochs", "seconds"))
    if result["teacher_accuracy"] is not None:
        teacher = output.percent(result["teacher_accuracy"])
        seconds = f"{result['teacher_seconds']:,.1f}"
        table.add_row("teacher", output.safe(result["teacher"]), "labels", teacher, "", seconds)
    table.add_row(
        "student",
        output.safe(result["student"]),
        "labels" if result["method"] == "alone" else result["method"],
        output.percent(result["accuracy"]),
        output.number(len(result["epochs"])),
        f"{result['seconds']:,.1f}",
    )
    console.print(table)
    console.print("Accuracy: on the test images, after the last epoch.")
    if result["config"]["epochs"] is not None:
        full = result["config"]["training"]["student"]["epochs"]
        console.print(f"Training was shortened to {len(result['epochs'])} of {full} epochs.")
