import signal
import threading

import pytest

from densekd.display.interrupts import Interrupts, first_process, interruptible


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


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "4", "LOCAL_RANK": "0"}, False),  # of torchrun's second machine
        ({"NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "2"}, False),
    ],
)
def test_only_one_of_all_processes_is_the_first(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], first: bool
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert first_process() == first
