"""``densekd sweep``: all runs of an experiment, of a table or a figure, say."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from densekd.cli import output
from densekd.cli.run_options import takes
from densekd.cli.signals import Interrupts, typed

if TYPE_CHECKING:
    from densekd.jobs.local import LocalPool
    from densekd.sweeps.jobs import SweepPlan
    from densekd.sweeps.ray import RayPool
    from densekd.sweeps.record import SweepRecord

EXAMPLES = """Examples:

densekd sweep table4-distillations --scale 0.1

densekd sweep table4-distillations --grid seed=1,2,3 --grid method.name=gkd,rdkd --dry-run

densekd sweep mine.toml --data digits -o memory.per_class=10 --workers 2

densekd sweep table1-cifar100 --engine ray --address auto

What was stopped goes on, and what failed is tried again, when the same command is given again."""

_HOW = "How it is carried out"


@dataclass(frozen=True)
class SweepOptions:
    """What was said on the command line; None is what wasn't."""

    scale: Annotated[
        float | None,
        typer.Option(
            help="A share of all epochs, for a rehearsal, such as 0.1.", show_default=False
        ),
    ] = None
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a setting that differs between runs, instead of the file's, or "
            "besides its settings. Can be repeated.",
            metavar="KEY=V1,V2",
            show_default=False,
        ),
    ] = None
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            "-o",
            help="A setting of all runs. Can be repeated.",
            metavar="KEY=VALUE",
            show_default=False,
        ),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(help="See `densekd data list`.", metavar="SOURCE", show_default=False),
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where CIFAR is, if not in DENSEKD_DATA.", show_default=False),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many runs go on at a time; half as many as there are processors by default.",
            rich_help_panel=_HOW,
            show_default=False,
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Processes of this machine, or a Ray cluster.", rich_help_panel=_HOW),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the Ray cluster; without it, this machine is one.",
            rich_help_panel=_HOW,
            show_default=False,
        ),
    ] = None

    def plan(self, file: Path, out: Path) -> "SweepPlan":
        """All runs of the experiment in a file, as they were asked for."""
        from densekd.config.settings_tree import override
        from densekd.sweeps.experiment_file import read_experiment
        from densekd.sweeps.jobs import plan

        if self.address is not None and self.engine != "ray":
            raise ValueError("--address is that of a Ray cluster; give --engine ray with it.")
        place = None if self.data_dir is None else str(self.data_dir)
        given = {k: v for k, v in (("source", self.data), ("dir", place)) if v is not None}
        changes = override({"data": given} if given else {}, self.override or [])
        return plan(read_experiment(file).with_axes(self.grid or []), out, changes, self.scale)

    def start(self) -> "LocalPool | RayPool":
        """Where runs are computed."""
        from densekd.jobs.local import LocalPool, cores, threads_each
        from densekd.sweeps.ray import RayPool
        from densekd.sweeps.work import work

        # A run gains by a second thread, and each holds its data in memory.
        usual = max(1, cores() // 2)
        if self.engine == "ray":
            return RayPool(work, self.address, self.workers, threads_each(usual))
        count = self.workers or usual
        return LocalPool(work, count, threads_each(count))


@takes(SweepOptions)
def sweep(
    options: SweepOptions,
    experiment: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of one in the folder experiments.",
            metavar="EXPERIMENT",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The folder that has a folder for each run.", metavar="FOLDER")
    ] = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print what became of it as JSON, all else on stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Carry out all runs of an experiment, sharing what they have in common.

    Ends with code 1 if a run failed.
    """
    from densekd.cli import sweep_tables
    from densekd.files import to_json

    file = _find(experiment)
    planned = options.plan(file, out)
    if dry_run:
        sweep_tables.show_plan(planned, output.console())
        return
    record = _carry_out(planned, file, options, quiet)
    if json:
        typer.echo(to_json(sweep_tables.as_json(record)), nl=False)
    sweep_tables.show_outcome(record, output.console(stderr=json))
    if any(record.entry(job)["state"] == "failed" for job in planned.jobs):
        raise typer.Exit(1)


def _find(experiment: str) -> Path:
    """The file that is meant."""
    file = Path(experiment)
    if file.suffix == ".toml" or file.parent != Path():
        return file
    folder = Path("experiments")
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if experiment in known:
        return folder / f"{experiment}.toml"
    near = difflib.get_close_matches(experiment, known, n=1)
    there = f"there are {', '.join(known)}" if known else "give the path of a TOML file"
    meant = f"did you mean {near[0]}?" if near else f"{there}."
    raise ValueError(f"There is no experiment {experiment!r} in the folder {folder}; {meant}")


def _carry_out(sweep: "SweepPlan", file: Path, options: SweepOptions, quiet: bool) -> "SweepRecord":
    from densekd.cli.sweep_tables import summary
    from densekd.sweeps.record import SweepRecord, opened
    from densekd.sweeps.work import finished

    with Interrupts() as interrupts, opened(sweep, file.read_text("utf-8-sig")):
        record = SweepRecord(sweep, finished)
        record.write()
        left = record.unfinished()
        if not quiet:
            typer.echo(summary(sweep, len(left)), err=True)
        said = _do(record, options, interrupts, quiet) if left else None
        if said is not None:
            typer.echo(f"{said}, repeat: {typed()}", err=True)
            raise typer.Exit(interrupts.exit_code)
        return record


def _do(
    record: "SweepRecord", options: SweepOptions, interrupts: Interrupts, quiet: bool
) -> str | None:
    """Do what is left; what to say if it was interrupted."""
    from densekd.cli.sweep_progress import observing
    from densekd.sweeps.sweep import carry_out

    try:
        pool = options.start()
        try:
            with observing(record, interrupts, quiet=quiet) as observer:
                done = carry_out(record, pool, observer)
        finally:
            pool.close()
    except KeyboardInterrupt:
        return "Left at once; to go on from the last saves"
    return None if done else "Stopped and saved; to go on"
