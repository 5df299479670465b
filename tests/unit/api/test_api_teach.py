import signal
from pathlib import Path

import pytest

import densekd
from densekd.model.request import Plan, TeachObserver
from densekd.training.callbacks import TrainingProgress

from support.photos import TINY, fill


class Interrupting(TeachObserver):
    """Raises a signal once, after the first batches, as Ctrl-C or a notebook's stop button do."""

    def __init__(self) -> None:
        self.resumed: list[bool] = []
        self.raised = False

    def planned(self, plan: Plan) -> None:
        self.resumed.append(plan.resumed)

    def report(self, report: TrainingProgress) -> None:
        if not self.raised:
            self.raised = True
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_saves_and_stops_although_an_observer_is_given(tmp_path: Path) -> None:
    images, observer = fill(tmp_path / "images", {"red": 8, "green": 8}), Interrupting()
    with pytest.raises(densekd.Stopped):
        densekd.teach(tmp_path / "model", images, TINY, quiet=True, observer=observer)
    update = densekd.teach(tmp_path / "model", images, TINY, quiet=True, observer=observer)
    assert (update.step, observer.resumed) == (0, [False, True])


def test_an_observer_may_stop_by_itself(tmp_path: Path) -> None:
    class Impatient(TeachObserver):
        def stop(self) -> bool:
            return True

    images = fill(tmp_path / "images", {"red": 8, "green": 8})
    with pytest.raises(densekd.Stopped):
        densekd.teach(tmp_path / "model", images, TINY, quiet=True, observer=Impatient())


def test_a_misspelt_answer_for_known_classes_is_refused(tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"red": 8, "green": 8})
    with pytest.raises(ValueError, match="known='refused' is not one of 'refuse'"):
        densekd.teach(tmp_path / "model", images, known="refused", quiet=True)  # type: ignore[arg-type]
    assert not (tmp_path / "model").exists()
