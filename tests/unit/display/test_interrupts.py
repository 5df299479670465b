import signal
import threading

import pytest

from densekd.display.interrupts import Interrupts, interruptible


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_ctrl_c_after_it_leaves(
    number: signal.Signals, code: int
) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    said = []
    with Interrupts() as interrupts:
        interrupts.on_first = lambda: said.append("stopping")
        assert interrupts.received is None
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == number
        assert interrupts.exit_code == code
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert said == ["stopping"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_inner_work_shares_the_interrupts_of_its_command() -> None:
    with Interrupts() as outer, interruptible() as inner:
        assert inner is outer
    with interruptible() as own:
        assert own is not outer
        signal.raise_signal(signal.SIGINT)
        assert own.received == signal.SIGINT
    assert outer.received is None


def test_another_thread_can_work_without_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with interruptible() as interrupts:
            seen.append(interrupts.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
    assert signal.getsignal(signal.SIGINT) == before
