"""``densekd methods``: what methods there are, and what one of them minimises."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from densekd.cli import output

if TYPE_CHECKING:
    from densekd.methods.method import Phase

EXAMPLES = """Examples:

densekd methods

densekd methods rdkd-adaptive

densekd methods podnet+rdkd --data cifar100"""


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method; without it all are listed.", show_default=False)
    ] = None,
    data: Annotated[
        str, typer.Option(help="The data whose usual settings are shown.", metavar="SOURCE")
    ] = "cifar100",
) -> None:
    """List the methods, or show what one of them minimises, by which schedule."""
    if name is None:
        _list()
    else:
        _explain(name, data)


def _list() -> None:
    from densekd.config.schema import resolve
    from densekd.methods.registry import HOSTS, METHODS

    table = output.table("method", "what it does", "terms", "phases")
    for name, line in METHODS.items():
        config = resolve({"method": {"name": name}, "data": {"source": "cifar100"}})
        method = config.method.make(config.schedules())
        phases = ", ".join(phase.name for phase in method.increment)
        table.add_row(name, line, ", ".join(method.terms), phases)
    console = output.console()
    console.print(table)
    console.print(
        f"{', '.join(HOSTS)} take a distillation: METHOD+gkd, +tkd, +fdkd, +rdkd, each also with "
        "-adaptive. `densekd methods NAME` says more of one.",
        soft_wrap=True,
    )


def _explain(name: str, data: str) -> None:
    from densekd.config.schema import as_tree, resolve
    from densekd.methods.registry import HOSTS, METHODS, what_kd_does

    config = resolve({"method": {"name": name}, "data": {"source": data}})
    method = config.method.make(config.schedules())
    console = output.console()
    console.print(f"{name}: {METHODS[config.method.host]}.")
    combined = what_kd_does(name)
    if combined:
        console.print(f"Here the + has {combined}.")
    console.print(f"\nIt minimises {' + '.join(method.terms)}, with")
    for slot, term in method.terms.items():
        console.print(f"  {slot} = {term.formula}", soft_wrap=True)
    console.print(
        f"\nClassifier: {method.head}. Streams: {method.streams}. Predicts by: {method.predicts}. "
        f"Network: {config.network}. Exemplars: {config.memory.selection}."
    )
    for title, phases in (("the first task", method.base), ("later tasks", method.increment)):
        for phase in phases:
            console.print(f"{title}, {phase.name}: {_course(phase)}")
    if config.method.host in HOSTS:
        key = config.method.host.replace("-", "_")
        settings = as_tree(config)["method"][key]
        values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        console.print(f"\nIts own settings, method.{key}: {values}.", soft_wrap=True)


def _course(phase: "Phase") -> str:
    schedule = phase.schedule
    decay = {
        "cosine": f"cosine to {schedule.lr_end:g}",
        "milestones": f"times {schedule.factor:g} at {', '.join(map(str, schedule.milestones))}",
        "constant": "constant",
    }[schedule.decay]
    where = "" if phase.data == "streams" else f", on {phase.data} exemplars"
    what = {"all": "", "new": ", old classes' weights fixed"}
    only = what.get(phase.trains, f", only the {phase.trains}")
    return (
        f"{schedule.epochs} epochs, batches of {schedule.batch_size}, rate {schedule.lr:g}, "
        f"{decay}, weight decay {schedule.weight_decay:g}{where}{only}"
    )
