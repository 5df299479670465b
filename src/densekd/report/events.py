"""The parts of the loss over time, from the events that a run wrote for TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from densekd.report.groups import Group

_PREFIX = "loss/"
Curve = list[tuple[int, float]]


def read_losses(folder: Path) -> dict[str, Curve]:
    """Each part of the loss by epoch, over all tasks; empty if a run wrote no events.

    Args:
        folder: of the run. One that took its base from another has no epochs of it.
    """
    if not any(folder.glob("tensorboard/epochs/events.*")):
        return {}
    # Imported here: it takes a while. It has no annotations.
    from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
        event_accumulator,
    )

    # A size of 0 keeps all events; where a run was resumed, those it repeated are dropped.
    events = event_accumulator.EventAccumulator(
        str(folder / "tensorboard" / "epochs"), {"scalars": 0}
    )
    events.Reload()
    return {
        tag.removeprefix(_PREFIX): [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag.startswith(_PREFIX)
    }


def mean_losses(group: Group) -> dict[str, Curve]:
    """The parts of the loss of a group, in the mean over those runs that have an epoch."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in group.runs or group.all_runs:
        for slot, curve in read_losses(run.folder).items():
            for epoch, loss in curve:
                found.setdefault(slot, {}).setdefault(epoch, []).append(loss)
    return {slot: _means(epochs) for slot, epochs in found.items()}


def _means(epochs: Mapping[int, Sequence[float]]) -> Curve:
    return [(epoch, sum(each) / len(each)) for epoch, each in sorted(epochs.items())]
