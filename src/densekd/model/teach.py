"""Teach a model new classes, as a transaction that can be interrupted at any moment."""

import time
from pathlib import Path

from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver, UpdateRequest, check_places
from densekd.model.store import FROZEN, Store, Update
from densekd.training.callbacks import stoppable


def teach_model(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver | None = None
) -> Update:
    """Teach a model the classes in a folder of images; makes the model if there is none.

    ``source`` has a sub-folder of images for each class, or ``train`` and ``val`` that have these.

    The model doesn't change until the update is finished and verified. Repeat the call to continue
    an interrupted update; it ends with the same weights, bit for bit. If the last update was the
    same, nothing is done. Raises `Stopped` if ``observer`` asks to stop; progress is saved.
    """
    observer, began = observer or TeachObserver(), time.monotonic()
    request = _read(folder, source, options, observer)
    if isinstance(request, Update):
        Store(folder).tidy()
        observer.repeated(request.step)
        return request
    with request.store.locked():
        if request.store.pointer() != request.pointer:
            raise ValueError(f"{folder} was changed while the images were read; try again.")
        return request.carry_out(observer, began)


def preview(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver | None = None
) -> Plan:
    """Plan what `teach_model` would do, and time it, without changing the model.

    Raises ValueError if the model's last update was the same.
    """
    observer, began = observer or TeachObserver(), time.monotonic()
    request = _read(folder, source, options, observer)
    if isinstance(request, Update):
        raise ValueError(
            f"{source} was already learned in step {request.step}; there is nothing left to learn."
        )
    return request.timed_plan(observer, began)


def _read(
    folder: Path, source: Path, options: TeachOptions, observer: TeachObserver
) -> UpdateRequest | Update:
    """Everything that the update needs, or the model's last update if it was the same."""
    check_places(folder, source)
    store, reading = Store(folder), stoppable(observer.reading, observer)
    return _kind(store, options).read(store, source, options, reading)


def _kind(store: Store, options: TeachOptions) -> type[UpdateRequest]:
    """The kind of update that fits the model, or for a new model the options."""
    pointer = store.pointer()
    if pointer is None:
        frozen = not options.trains
    else:
        frozen = store.facts(pointer.step).get("kind") == FROZEN
    if frozen:
        from densekd.model.frozen.request import FrozenRequest

        return FrozenRequest
    # Imported only here, because the engine for training takes seconds to import.
    from densekd.model.trained.request import TrainedRequest

    return TrainedRequest
