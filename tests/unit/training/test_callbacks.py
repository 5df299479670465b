import logging

import pytest

from densekd.training.callbacks import Callback, Stopped, forward_warnings, stoppable


class StopNow(Callback):
    def stop(self) -> bool:
        return True


def test_reading_reports_progress_and_stops_when_asked() -> None:
    calls: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        calls.append((done, total))

    stoppable(progress, Callback())(1, 3)
    with pytest.raises(Stopped):
        stoppable(progress, StopNow())(2, 3)
    assert calls == [(1, 3), (2, 3)]


def test_warnings_of_the_package_are_forwarded_within_the_context_only() -> None:
    sent: list[str] = []
    with forward_warnings(sent.append):
        logging.getLogger("densekd.data").warning("%d images", 3)
        logging.getLogger("densekd.data").info("not a warning")
        logging.getLogger("other").warning("not ours")
    logging.getLogger("densekd.data").warning("too late")
    assert sent == ["3 images"]
