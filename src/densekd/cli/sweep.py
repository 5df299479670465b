"""``densekd sweep``: all runs of an experiment, such as those of a table or a figure."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from densekd.cli import options
from densekd.cli.options import argument, command, option
from densekd.cli.run import SettingOptions
from densekd.cli.signals import resumable
from densekd.display import output

if TYPE_CHECKING:
    from densekd.sweeps.jobs import SweepPlan

_worker = partial(option, panel="Workers")


def _list(wanted: bool) -> None:
    """Print the names and titles of all experiments, and exit."""
    if not wanted:
        return
    from densekd.sweeps.experiment_file import read_experiment
    from densekd.sweeps.library import experiment_names, find_experiment

    table = output.table("experiment", "what it is")
    for name in experiment_names():
        title = read_experiment(find_experiment(name)).title
        table.add_row(output.safe(name), output.safe(title))
    output.console().print(table)
    raise typer.Exit


@dataclass(frozen=True)
class SweepOptions(SettingOptions):
    """The options of a sweep; None if not given."""

    scale: Annotated[
        float | None, option("Train for a share of the epochs, such as 0.1, to try things out.")
    ] = None
    grid: Annotated[
        list[str] | None,
        option(
            "Values of a setting, with a run for each. Replaces or extends the file's grid; "
            "repeatable.",
            metavar="KEY=V1,V2",
        ),
    ] = None
    pick: Annotated[
        list[str] | None,
        option(
            "A setting of the grid to tune: pick its best value by validation accuracy, and show "
            "the test accuracy of that pick only; repeatable.",
            metavar="KEY",
        ),
    ] = None
    pick_tasks: Annotated[
        int | None,
        option(
            "Train candidates on this many first tasks only; the pick then learns all tasks.", min=1
        ),
    ] = None
    workers: Annotated[
        int | None,
        _worker("Runs at the same time. Default: half the number of processors.", min=1),
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="Processes on this machine, or a Ray cluster.", rich_help_panel="Workers"
        ),
    ] = "local"
    address: Annotated[
        str | None, _worker("Address of the Ray cluster. Default: start one here.")
    ] = None
    list_names: Annotated[
        bool,
        typer.Option(
            "--list", help="List the experiments and exit.", is_eager=True, callback=_list
        ),
    ] = False

    def plan(self, name: str, out: Path, *, only_list: bool) -> "SweepPlan":
        """All runs of an experiment, with the changes that the options ask for.

        With ``only_list``, list runs with wrong settings as impossible, instead of raising.
        """
        from densekd.config.keywords import COMPRESSION_KEYS
        from densekd.sweeps.experiment_file import read_experiment
        from densekd.sweeps.jobs import plan
        from densekd.sweeps.library import find_experiment

        if self.address is not None and self.engine != "ray":
            raise ValueError("--address names a Ray cluster; add --engine ray.")
        experiment = read_experiment(find_experiment(name)).with_axes(self.grid or [])
        experiment = experiment.with_pick(self.pick or [], self.pick_tasks)
        keys = COMPRESSION_KEYS if experiment.kind == "compression" else None
        return plan(experiment, out, self.given(keys), self.scale, only_list=only_list)


@command(
    "densekd sweep --list",
    "densekd sweep table4-distillations --scale 0.1",
    "densekd sweep table4-distillations --grid seed=1,2,3 --grid method.name=gkd,rdkd --dry-run",
    "densekd sweep mine.toml --validation 0.1 --grid training.increment.lr=0.1,0.2 "
    "--pick training.increment.lr",
    "densekd sweep mine.toml --data digits -o memory.per_class=10 --workers 2",
    "densekd sweep table1-cifar100 --engine ray --address auto",
    options=SweepOptions,
    note="Repeat the same command to resume stopped runs and to retry failed ones.",
)
def sweep_command(
    settings: SweepOptions,
    experiment: Annotated[
        str,
        argument("Name of an experiment, as --list shows them, or a TOML file.", "EXPERIMENT"),
    ],
    out: options.RunsFolder = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the runs, with those that are impossible.")
    ] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Do all runs of an experiment; a base task that several runs share is trained once.

    Exits with code 1 if a run failed.
    """
    from densekd.api.sweep import carry_out_sweep
    from densekd.display import sweep_progress
    from densekd.sweeps.work import start_pool

    if dry_run and json:
        raise ValueError("--dry-run prints a table of the runs, not JSON; leave out --json.")
    planned = settings.plan(experiment, out, only_list=dry_run)
    if dry_run:
        sweep_progress.show_sweep_plan(planned, output.console())
        if wrong := sum(each.refused for each in planned.impossible):
            raise ValueError(f"{wrong} of these runs have invalid settings; the list says which.")
        return
    pool = partial(start_pool, settings.workers, settings.engine, settings.address)
    with resumable():
        record = carry_out_sweep(planned, pool, quiet=quiet)
    if json:
        output.print_json(sweep_progress.as_json(record))
    sweep_progress.show_outcome(record, output.console(stderr=json))
    if any(record.entry(job)["state"] == "failed" for job in record.sweep.jobs):
        raise typer.Exit(1)
