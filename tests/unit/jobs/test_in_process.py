import threading
from typing import Any

import pytest

from densekd.jobs.events import JobChannel, JobDone, JobEvent, JobFailed, JobProgress, JobStopped
from densekd.jobs.in_process import InProcessPool


def collect(pool: InProcessPool) -> list[tuple[Any, JobEvent]]:
    """All events until the job has ended."""
    found: list[tuple[Any, JobEvent]] = []
    while not pool.free and not (found and isinstance(found[-1][1], JobStopped)):
        found += pool.events(5.0)
    return found


def test_a_job_reports_and_ends_in_this_process() -> None:
    threads: list[int] = []

    def work(job: list[int], channel: JobChannel) -> int:
        threads.append(threading.get_ident())
        channel.send(JobProgress("adding"))
        return sum(job)

    pool = InProcessPool(work)
    for job in ([1, 2], [3, 4]):
        assert pool.free
        pool.start(job)
        assert not pool.free
        assert collect(pool) == [(job, JobProgress("adding")), (job, JobDone(sum(job)))]
    pool.close()
    assert len(threads) == 2


def test_a_job_that_raises_fails_alone() -> None:
    def work(job: int, channel: JobChannel) -> float:
        return 1 / job

    pool = InProcessPool(work)
    pool.start(0)
    ((job, event),) = collect(pool)
    assert job == 0
    assert isinstance(event, JobFailed)
    assert "division by zero" in event.reason
    pool.start(1)
    assert collect(pool) == [(1, JobDone(1.0))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("ending", [SystemExit, GeneratorExit])
def test_a_job_that_ends_its_thread_has_failed(ending: type[BaseException]) -> None:
    def work(job: object, channel: JobChannel) -> None:
        raise ending

    pool = InProcessPool(work)
    pool.start(1)
    ((_, event),) = collect(pool)
    assert event == JobFailed("its code ended the thread, as sys.exit() does.")


def waits(job: object, channel: JobChannel) -> None:
    from densekd.training.callbacks import Stopped

    started.set()
    while not channel.stop():
        stopping.wait(0.01)
    raise Stopped


started, stopping = threading.Event(), threading.Event()


def test_a_job_is_asked_to_stop() -> None:
    pool = InProcessPool(waits)
    job = object()
    pool.start(job)
    started.wait()
    pool.stop_job(object())
    assert list(pool.events(0.01)) == []
    pool.stop_job(job)
    assert collect(pool) == [(job, JobStopped())]
    assert pool.free
    pool.start(job)
    pool.close()  # waits for it
    assert not pool.free
    assert [event for _, event in pool.events(0)] == [JobStopped()]
