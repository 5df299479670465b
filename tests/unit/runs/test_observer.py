from typing import Any

import pytest

from densekd.runs.observer import RunObserver, RunObservers
from densekd.training.callbacks import Callback

EVENTS = [name for kind in (Callback, RunObserver) for name in vars(kind) if name[0] != "_"]


def recorder(heard: list[Any]) -> RunObserver:
    """An observer that keeps all events."""

    def keep(event: str) -> Any:
        return lambda self, *facts: heard.append((event, facts))

    made: RunObserver = type("Recorder", (RunObserver,), {event: keep(event) for event in EVENTS})()
    return made


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_is_passed_on_to_all(event: str) -> None:
    heard: list[Any] = []
    facts = [object() for _ in range(getattr(RunObserver, event).__code__.co_argcount - 1)]
    getattr(RunObservers(recorder(heard), recorder(heard)), event)(*facts)
    assert heard == [(event, tuple(facts))] * 2


def test_one_that_wants_to_stop_is_enough() -> None:
    class Stopping(RunObserver):
        def stop(self) -> bool:
            return True

    assert RunObservers(RunObserver(), Stopping()).stop()
    assert not RunObservers(RunObserver()).stop()
