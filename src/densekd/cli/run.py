"""``densekd run`` and ``densekd config``: a benchmark run, and its settings."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from densekd.cli import options
from densekd.cli.options import argument, command, option
from densekd.cli.signals import resumable
from densekd.display import output
from densekd.display.interrupts import first_process

if TYPE_CHECKING:
    from densekd.config.schema import Config

config_app = typer.Typer(no_args_is_help=True, help="Show and check the settings of a run.")
_task = partial(option, panel="Tasks")
_training = partial(option, panel=options.TRAINING)


@dataclass(frozen=True)
class SettingOptions:
    """The options that stand for settings of a run; None if not given."""

    data: options.SourceOption = None
    data_dir: options.DataDir = None
    image_size: Annotated[
        int | None, option("Height and width for image files, such as 224.", panel=options.DATA)
    ] = None
    validation: Annotated[
        float | None,
        option(
            "Share of the training images to hold out for validation, such as 0.1.",
            panel=options.DATA,
            metavar="SHARE",
        ),
    ] = None
    test_per_class: Annotated[
        int | None, option("Test on at most this many images of each class.", panel=options.DATA)
    ] = None
    steps: Annotated[int | None, _task("Number of tasks after the first. Default: 5.")] = None
    base: Annotated[int | None, _task("Classes in the first task. Default: half of them.")] = None
    increment: Annotated[int | None, _task("Classes in each later task, instead of --steps.")] = (
        None
    )
    equal: Annotated[
        bool | None, _task("Give the first task as many classes as the others.", "--equal")
    ] = None
    tasks: Annotated[
        str | None,
        _task(
            "Classes of each task, instead of --steps: sizes such as 50,20,20,10, or a file of "
            "class names with an empty line between tasks.",
            metavar="TASKS",
        ),
    ] = None
    order: Annotated[
        str | None,
        _task(
            "Class order: a seed, natural, icarl, a file, or your own, such as mine.py:order. "
            "Default: 1993.",
            metavar="ORDER",
        ),
    ] = None
    method: Annotated[
        str | None,
        _training(
            "Method; `densekd methods` lists all. Or your own, such as mine.py:eeil, which runs "
            "that file's code. Default: rdkd."
        ),
    ] = None
    epochs: options.Epochs = None
    memory: Annotated[int | None, _training("Exemplars kept per class. Default: 20.")] = None
    memory_total: Annotated[
        int | None, _training("Exemplars kept in all, instead of --memory.")
    ] = None
    network: Annotated[
        str | None, _training("Backbone, such as resnet32, hf:NAME_OR_PATH or mine.py:tiny.")
    ] = None
    metrics: Annotated[
        list[str] | None,
        _training(
            "A metric of your own, such as mine.py:ece, measured after each task; repeatable.",
            "--metric",
            metavar="FILE.py:NAME",
        ),
    ] = None
    loggers: Annotated[
        list[str] | None,
        _training(
            "Where to log metrics besides the run folder: tensorboard, wandb, mlflow, or your own, "
            "such as mine.py:Log; repeatable. Default: tensorboard, if installed.",
            "--logger",
            metavar="NAME",
        ),
    ] = None
    seed: options.Seed = None
    devices: Annotated[int | None, _training("Processes that share each batch. Default: 1.")] = None
    nodes: Annotated[
        int | None,
        _training("Machines that share each batch, each with its --devices. Default: 1."),
    ] = None
    keep_steps: Annotated[
        bool | None,
        _training("Keep the learner and the test predictions after every step.", "--keep-steps"),
    ] = None
    start: Annotated[
        str | None,
        option(
            "Go on from a step of another run, with its settings except for the options given "
            "here. Step 1 is the first task.",
            "--from",
            panel=options.SETTINGS,
            metavar="RUN@STEP",
        ),
    ] = None
    override: options.Override = None

    def given(self, keys: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The given settings as a tree; ``keys`` maps options to dotted keys."""
        from densekd.config.keywords import RUN_KEYS, settings_of
        from densekd.config.settings_tree import override

        values = {name: getattr(self, name) for name in RUN_KEYS}
        sizes = (self.tasks or "").replace(",", "").replace(" ", "").isdigit()
        texts = {"order": self.order, "tasks": f"[{self.tasks}]" if sizes else self.tasks}
        # Parse them like overrides, because they may be numbers or words.
        named = [f"{name}={text}" for name, text in texts.items() if text is not None]
        given = settings_of(override(values, named), keys or RUN_KEYS)
        return override(given, self.override or [])


@dataclass(frozen=True)
class RunOptions(SettingOptions):
    """The options of a run; None if not given."""

    trust_code: options.TrustCode = False
    config: Annotated[
        Path | None,
        option(
            "TOML file of settings, as `densekd config show` prints it. Options override it.",
            panel=options.SETTINGS,
            metavar="FILE",
        ),
    ] = None

    def resolve(self) -> "Config":
        """The settings from the file, changed by the options, then by the overrides."""
        from densekd.config.keywords import make_config

        with output.show_warnings(output.console(stderr=True)):
            return make_config(self.config, changes=self.given(), trust_code=self.trust_code)


@command(
    "densekd run",
    "densekd run --data cifar100 --method rdkd-adaptive --steps 10 --epochs 30%",
    "densekd run --data folder:~/photos --increment 5 --memory-total 500",
    "densekd run --config mine.toml --seed 7 -o method.options.temperature=4",
    "densekd run --from runs/digits-rdkd-0123456789ab@3 --method gkd",
    options=RunOptions,
    note="Repeat the same command to resume a run that was stopped.",
)
def run_command(
    settings: RunOptions,
    out: options.RunsFolder = Path("runs"),
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Learn the classes of a data set in several tasks, and measure how well each is remembered.

    Without options, it runs rdkd on digits.
    """
    from densekd.api.run import run

    with resumable():
        result = run(settings.resolve(), out=out, quiet=quiet)
    # Print this call's path of the folder, which may have been moved since the run.
    print_result({**result.record, "folder": str(result.folder)}, json, _show_result)


def print_result(
    result: Mapping[str, Any], json: bool, show: Callable[[Mapping[str, Any], Console], None]
) -> None:
    """Print a result as a table; with ``json``, print JSON on stdout and the table on stderr."""
    if not first_process():
        return
    if json:
        output.print_json(result)
    console = output.console(stderr=json)
    show(result, console)
    console.print(f"Results are in {output.safe(result['folder'])}.", soft_wrap=True)


@command(
    "densekd config show --data cifar100 --method gkd > gkd.toml",
    "densekd config show --config gkd.toml --seed 7",
    options=RunOptions,
    name="show",
)
def config_show_command(settings: RunOptions) -> None:
    """Print all settings of a run as TOML, including the defaults; unset ones are comments."""
    from densekd.config.schema import as_toml
    from densekd.methods.registry import BASELINES

    lines = as_toml(settings.resolve(), unset=True).splitlines()
    others = {f"# {spec.key} = none" for spec in BASELINES.values()}  # can't be set for this method
    typer.echo("\n".join(line for line in lines if line not in others))


@command("densekd config check mine.toml", name="check")
def config_check_command(
    file: Annotated[Path, argument("File of settings, as TOML.", "FILE")],
) -> None:
    """Check a file of settings. Exits with code 2 if it can't be used."""
    config = RunOptions(config=file).resolve()
    what = f"{config.method.name} on {config.data.source} with {config.network}"
    typer.echo(f"{output.safe(file)} is valid: {output.escape_controls(what)}.")


config_show_command.add_to(config_app)
config_check_command.add_to(config_app)


def _show_result(result: Mapping[str, Any], console: Console) -> None:
    held, own = result.get("validation"), list(result["steps"][-1].get("metrics", {}))
    numbers = ["classes", "all %", "base %", "old %", "new %", *own, "seconds", "images/s"]
    if held:
        numbers.insert(5, "validation %")
    table = output.table("task", "learned", numbers=numbers)
    table.collapse_padding = True
    for step in result["steps"]:
        parts = ("accuracy", "base_accuracy", "old_accuracy", "new_accuracy")
        table.add_row(
            str(step["number"] + 1),
            output.name_list(step["classes"], most=2),
            output.number(step["classes_seen"]),
            *(output.percent(step[part]) for part in parts),
            *([output.percent(step["validation"]["accuracy"])] if held else []),
            *(f"{step['metrics'].get(name, math.nan):.4g}" for name in own),
            f"{step['seconds']:,.1f}",
            output.number(step["images_per_second"]),
        )
    console.print(table)
    measured = {"Average incremental accuracy": result}
    if held:
        measured["On validation images:"] = held
    for title, values in measured.items():
        average = output.percent(values["average_incremental_accuracy"])
        forgetting = output.percent(values["forgetting"])
        console.print(f"{title} {average} %, forgetting {forgetting} points.")
