"""The loss terms of runs over time, for the report."""

from importlib.util import find_spec
from pathlib import Path

from densekd.reports.groups import RunGroup

_PREFIX = "loss/"
Curve = list[tuple[int, float]]


def read_losses(folder: Path) -> dict[str, Curve]:
    """Read each loss term of a run by epoch, counted over all tasks; empty if there are none.

    Epochs of earlier versions aren't in ``epochs.jsonl``; they are read from TensorBoard events, if
    TensorBoard is installed.
    """
    # Imported here because it imports PyTorch, which `compare` doesn't need.
    from densekd.runs.epochs import read_epochs

    epochs = [entry for entry in read_epochs(folder) if "step" in entry]
    found: dict[str, dict[int, float]] = {}
    if not epochs or epochs[0]["step"] > 1:
        found = _read_tensorboard(folder / "tensorboard" / "epochs")
    for entry in epochs:
        for slot, loss in entry["losses"].items():
            if loss is not None:  # None stands for NaN and infinity
                found.setdefault(slot, {})[entry["step"]] = loss
    return {slot: sorted(curve.items()) for slot, curve in found.items()}


def mean_losses(group: RunGroup) -> dict[str, Curve]:
    """The loss terms of a group: at each epoch, the mean over the runs that reached it."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in group.runs or group.all_runs:
        for slot, curve in read_losses(run.folder).items():
            for epoch, loss in curve:
                found.setdefault(slot, {}).setdefault(epoch, []).append(loss)
    return {
        slot: [(epoch, sum(each) / len(each)) for epoch, each in sorted(epochs.items())]
        for slot, epochs in found.items()
    }


def _read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    if not any(folder.glob("events.*")) or find_spec("tensorboard") is None:
        return {}
    # Slow to import, and without annotations.
    from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
        event_accumulator,
    )

    # A size of 0 keeps all events except those that a resumed run repeated.
    events = event_accumulator.EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    return {
        tag.removeprefix(_PREFIX): {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
        if tag.startswith(_PREFIX)
    }
