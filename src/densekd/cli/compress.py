"""``densekd compress``: a small network that learns from a large one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from densekd.cli import output
from densekd.cli.run_options import takes
from densekd.cli.signals import first_process, resumable

if TYPE_CHECKING:
    from densekd.compression.config import CompressionConfig

EXAMPLES = """Examples:

densekd compress --method fdkd

densekd compress --data cifar100 --teacher wrn-40-4 --student resnet32 --method rdkd --epochs 30%

densekd compress --method kd --student resnet14 --teacher-file runs/compress-fdkd-0123456789ab

densekd compress --method rdkd -o options.whole=true -o training.student.lr=0.1

What was stopped goes on when the same command is given again; compressions in the same folder share
their teachers."""


def _option(help: str, *names: str, metavar: str = "") -> Any:
    return typer.Option(*names, help=help, metavar=metavar or None, show_default=False)


@dataclass(frozen=True)
class CompressOptions:
    """What was said on the command line; None is what wasn't."""

    method: Annotated[
        str | None, _option("kd, rdkd (by default), fdkd, or alone for no teacher at all.")
    ] = None
    data: Annotated[
        str | None, _option("See `densekd data list`; digits by default.", metavar="SOURCE")
    ] = None
    data_dir: Annotated[
        Path | None, _option("Where CIFAR is, or is put, if not in DENSEKD_DATA.")
    ] = None
    teacher: Annotated[str | None, _option("The large network, such as wrn-40-4.")] = None
    student: Annotated[str | None, _option("The small network, such as resnet32.")] = None
    teacher_file: Annotated[
        Path | None,
        _option(
            "A trained teacher: the folder of an earlier compression, or one in its folder "
            "teachers. Without it, one is trained.",
            metavar="FOLDER",
        ),
    ] = None
    groups: Annotated[
        int | None, _option("The blocks of classes that groups are made of; 10 by default.")
    ] = None
    epochs: Annotated[
        str | None,
        _option(
            "Epochs of the student (10), or a share of the full schedule (0.3, 30%); the "
            "teacher's are shortened alike.",
            metavar="EPOCHS",
        ),
    ] = None
    seed: Annotated[int | None, _option("Of all that is drawn; 1993 by default.")] = None
    override: Annotated[
        list[str] | None,
        _option(
            "Any setting of compression.toml in the folder of a compression, such as "
            "options.temperature=2; counts most. Can be repeated.",
            "--override",
            "-o",
            metavar="KEY=VALUE",
        ),
    ] = None

    def resolve(self) -> "CompressionConfig":
        """The configuration: of options, changed by overrides."""
        from densekd.compression.config import resolve_compression
        from densekd.config.settings_tree import override

        names = ("method", "teacher", "student", "teacher_file", "groups", "epochs", "seed")
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        given["data"] = _known({"source": self.data, "dir": self.data_dir})
        return resolve_compression(override(_known(given), self.override or []))


@takes(CompressOptions)
def compress(
    settings: CompressOptions,
    out: Annotated[
        Path, typer.Option(help="The folder that has a folder for each run.", metavar="FOLDER")
    ] = Path("runs"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, all else on stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train a small network to do what a large one does, on all classes at once."""
    from densekd.files import to_json

    result = _result(settings.resolve(), out, quiet or not first_process())
    if not first_process():
        return
    if json:
        typer.echo(to_json(result), nl=False)
    _show_result(result, output.console(stderr=json))


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _result(config: "CompressionConfig", out: Path, quiet: bool) -> dict[str, Any]:
    from densekd.cli.run_progress import watching
    from densekd.compression.compress import compress
    from densekd.compression.config import compression_folder

    if not quiet and (compression_folder(config, out) / "result.json").exists():
        typer.echo("This compression was finished before; here is its result.", err=True)
    with resumable() as interrupts, watching(config, interrupts, quiet=quiet) as observer:
        return compress(config, out, observer)


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
    console.print("Accuracy is of the test images, after the last epoch.")
    if result["config"]["epochs"] is not None:
        full = result["config"]["training"]["student"]["epochs"]
        console.print(f"Training was shortened to {len(result['epochs'])} of {full} epochs.")
    console.print(f"All of it is in {output.safe(result['folder'])}.", soft_wrap=True)
