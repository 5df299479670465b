"""Work that is done in other processes, whatever becomes of them."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from densekd.jobs import local
from densekd.jobs.events import (
    Busy,
    JobChannel,
    JobDone,
    JobEvent,
    JobFailed,
    JobProgress,
    JobStopped,
    JobWarning,
)
from densekd.jobs.local import BackgroundJob, LocalPool, threads_each
from densekd.training.callbacks import Stopped


def work(job: str, line: JobChannel) -> int | None:
    """What a job asks for, as a name and a value."""
    name, _, value = job.partition(" ")
    if name == "tell":
        line.send(JobProgress(f"{os.getpid()} {torch.get_num_threads()}", 0.5))
    elif name == "warn":
        logging.getLogger("densekd.some.module").warning("There are %s.", value)
    elif name == "die":
        os.kill(os.getpid(), int(value))
    elif name == "leave":
        os._exit(int(value))
    elif name == "wait":
        line.send(JobProgress("waiting"))
        while not line.stop():
            time.sleep(0.01)
        raise Stopped
    elif name == "return":
        return int(value)
    else:
        fail(name, value)
    return None


def fail(name: str, value: str) -> None:
    if name == "refuse":
        raise ValueError(value)
    if name == "break":
        raise ZeroDivisionError(value)
    if name == "busy" and not Path(value).exists():
        Path(value).touch()
        raise Busy("Another process is working on it.")


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    made = LocalPool(work, 2, 1)
    yield made
    made.close()


def told(pool: LocalPool, *jobs: str) -> dict[str, list[JobEvent]]:
    """What is told of jobs until they have ended."""
    found: dict[str, list[JobEvent]] = {job: [] for job in jobs}
    waiting = list(jobs)
    running = 0
    while waiting or running:
        while waiting and pool.free:
            pool.start(waiting.pop(0))
            running += 1
        for job, event in pool.events(5):
            found[job].append(event)
            running -= isinstance(event, JobDone | JobStopped | JobFailed)
    return found


def test_jobs_are_done_one_after_another_by_few_processes(pool: LocalPool) -> None:
    jobs = [f"tell {n}" for n in range(6)]
    found = told(pool, *jobs)
    processes = set()
    for first, last in found.values():
        assert isinstance(first, JobProgress)
        process, threads = first.doing.split()
        assert threads == "1"
        assert last == JobDone()
        processes.add(int(process))
    assert len(processes) <= 2
    assert os.getpid() not in processes


def test_what_happens_to_a_job_is_told(pool: LocalPool, tmp_path: Path) -> None:
    file = tmp_path / "worked on"
    found = told(pool, "warn three", "refuse no room.", "break it", f"busy {file}", "die 9", "tell")
    assert found["warn three"] == [JobWarning("There are three."), JobDone()]
    assert found["refuse no room."] == [JobFailed("no room.")]
    (broken,) = found["break it"]
    assert isinstance(broken, JobFailed)
    assert broken.reason == "ZeroDivisionError: it"
    assert "in fail\n" in broken.trace
    first, last = found[f"busy {file}"]
    assert first == JobProgress("waiting for another process that works on it")
    assert last == JobDone()
    # A worker that is killed takes no other job with it.
    assert found["die 9"] == [JobFailed("its process was killed; perhaps the memory was full.")]
    assert found["tell"][-1] == JobDone()


def test_other_ends_of_a_process(pool: LocalPool) -> None:
    found = told(pool, "leave 3", f"die {int(signal.SIGABRT)}")
    assert found["leave 3"] == [JobFailed("its process ended with code 3.")]
    assert found["die 6"] == [JobFailed("its process was ended by SIGABRT.")]


def test_all_stop_when_asked_to(pool: LocalPool) -> None:
    for job in ("wait 1", "wait 2"):
        pool.start(job)
    heard: list[JobEvent] = []
    while len(heard) < 4:
        heard += [event for _, event in pool.events(5)]
        if heard.count(JobProgress("waiting")) == 2 and len(heard) == 2:
            assert not pool.free
            pool.stop()
    assert heard == [JobProgress("waiting")] * 2 + [JobStopped()] * 2
    assert not pool.free


def test_a_process_that_is_told_to_end_saves_and_another_takes_its_place(pool: LocalPool) -> None:
    pool.start("wait")
    heard = [event for _, event in pool.events(60)]
    assert heard == [JobProgress("waiting")]
    (worker,) = pool._busy
    worker.process.terminate()
    assert [event for _, event in pool.events(60)] == [JobStopped()]
    assert told(pool, "tell")["tell"][-1] == JobDone()


def test_a_process_that_is_killed_between_jobs_fails_none(pool: LocalPool) -> None:
    assert told(pool, "tell")["tell"][-1] == JobDone()
    (worker,) = pool._idle
    worker.process.kill()
    worker.process.join()
    assert told(pool, "return 3")["return 3"] == [JobDone(3)]


def test_a_process_that_is_told_to_end_between_jobs_stops_none(pool: LocalPool) -> None:
    assert told(pool, "tell")["tell"][-1] == JobDone()
    (worker,) = pool._idle
    worker.process.terminate()
    worker.process.join(60)
    # It ends by the signal, or by itself if it was still putting its last job away.
    assert worker.process.exitcode in (-signal.SIGTERM, 0)
    assert told(pool, "return 3")["return 3"] == [JobDone(3)]


def test_closing_ends_what_is_going_on() -> None:
    pool = LocalPool(work, 1, 1)
    pool.start("wait")
    assert [event for _, event in pool.events(60)] == [JobProgress("waiting")]
    (worker,) = pool._busy
    pool.close()
    assert worker.process.exitcode == -signal.SIGKILL


def test_a_background_job_gives_its_events_and_its_result() -> None:
    events: list[JobEvent] = []
    job = BackgroundJob(work, "return 7", events.append)
    job.wait()
    assert not job.running
    assert events == [JobDone(7)]


def test_a_background_job_stops_when_asked_and_its_death_is_an_event() -> None:
    for end in ("stop", "kill"):
        events: list[JobEvent] = []
        job = BackgroundJob(work, "wait", events.append)
        while not events:
            job.wait(0.01)
        assert job.running
        if end == "stop":
            job.stop()
        else:
            os.kill(job.pid, signal.SIGKILL)
        job.wait()
        assert events[0] == JobProgress("waiting")
        assert isinstance(events[1], JobStopped if end == "stop" else JobFailed)
        assert len(events) == 2


def test_a_background_job_dies_with_its_process(tmp_path: Path) -> None:
    program = (
        "import test_local as t\n"
        "job = t.BackgroundJob(t.work, 'wait', lambda event: None)\n"
        "print(job.pid)\n"
    )
    command = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert ended.returncode == 0, ended.stderr
    assert not Path(f"/proc/{int(ended.stdout)}").exists()


def test_a_background_job_without_a_thread_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Thread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    pids, start = list[int](), LocalPool.start
    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(LocalPool, "start", lambda *given: pids.append(start(*given)))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        BackgroundJob(work, "wait", lambda event: None)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_threads_are_shared_out_unless_someone_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "available_processors", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_each(n) for n in (1, 3, 4, 8, 20)] == [8, 2, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_each(4) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert threads_each(4) == 2


def test_a_worker_gets_one_of_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert local._device(3) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [local._device(n) for n in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [local._device(n) for n in range(3)] == ["5", "7", "5"]
