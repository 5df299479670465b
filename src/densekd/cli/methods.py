"""``densekd methods``: list the methods, or explain one."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli.options import argument, command
from densekd.display import output

if TYPE_CHECKING:
    from densekd.methods.method import Phase


@command(
    "densekd methods",
    "densekd methods rdkd-adaptive",
    "densekd methods podnet+rdkd --data cifar100",
)
def methods_command(
    name: Annotated[str | None, argument("Method to explain. Default: list all.", "METHOD")] = None,
    data: Annotated[
        str, typer.Option(help="Data set whose default settings are shown.", metavar="SOURCE")
    ] = "cifar100",
) -> None:
    """List the methods, or show the loss, schedule and settings of one."""
    if name is None:
        _list()
    else:
        _explain(name, data)


def _list() -> None:
    from densekd.config.schema import resolve
    from densekd.methods.registry import BASELINES, METHODS

    table = output.table("method", "what it does", "terms", "phases")
    for name, spec in METHODS.items():
        config = resolve({"method": {"name": name}, "data": {"source": "cifar100"}})
        method = config.method.make(config.schedules())
        phases = ", ".join(phase.name for phase in method.increment)
        table.add_row(name, spec.summary, ", ".join(method.terms), phases)
    console = output.console()
    console.print(table)
    console.print(
        f"Combine {', '.join(BASELINES)} with a distillation: METHOD+gkd, +tkd, +fdkd or +rdkd, "
        "each also with -adaptive. `densekd methods NAME` explains one.",
        soft_wrap=True,
    )


def _explain(name: str, data: str) -> None:
    from densekd.config.schema import as_tree, resolve
    from densekd.methods.registry import METHODS, baseline_of, combination_text, split_name
    from densekd.parts import load_files

    first, _ = split_name(name)
    load_files([first])  # may run: the user named it
    config = resolve({"method": {"name": name}, "data": {"source": data}})
    method = config.method.make(config.schedules())
    console = output.console()
    summary = METHODS[first].summary if first in METHODS else "a method of your own"
    console.print(f"{output.safe(name)}: {summary}.", soft_wrap=True)
    if combined := combination_text(name):
        console.print(f"The + has {combined}.")
    console.print(f"\nLoss: {' + '.join(method.terms)}, with")
    for slot, term in method.terms.items():
        console.print(f"  {slot} = {term.formula or type(term).__name__}", soft_wrap=True)
    console.print(
        f"\nClassifier: {method.head}. Streams: {method.streams}. Predicts by: {method.predicts}. "
        f"Network: {config.network}. Exemplars: {config.memory.selection}."
    )
    for title, phases in (("the first task", method.base), ("later tasks", method.increment)):
        for phase in phases:
            console.print(f"{title}, {phase.name}: {_schedule(phase)}")
    if (baseline := baseline_of(name)) is not None:
        settings = as_tree(config)["method"][baseline.key]
        values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        console.print(f"\nOwn settings, method.{baseline.key}: {values}.", soft_wrap=True)


def _schedule(phase: "Phase") -> str:
    schedule = phase.schedule
    decay = {
        "cosine": f"cosine to {schedule.lr_end:g}",
        "milestones": f"times {schedule.factor:g} at {', '.join(map(str, schedule.milestones))}",
        "constant": "constant",
    }[schedule.decay]
    where = "" if phase.data == "streams" else f", on {phase.data} exemplars"
    trained = {"all": "", "new": ", old classes' weights frozen"}
    only = trained.get(phase.trains, f", only the {phase.trains}")
    return (
        f"{schedule.epochs} epochs, batches of {schedule.batch_size}, lr {schedule.lr:g}, "
        f"{decay}, weight decay {schedule.weight_decay:g}{where}{only}"
    )
