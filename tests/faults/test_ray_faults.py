"""Jobs on a Ray cluster of several machines, which Ray itself imitates on this one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from densekd.jobs.events import JobChannel, JobDone, JobEnd, JobProgress
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.ray import RayPool

ray = pytest.importorskip("ray")


def note_machine(job: SweepJob, channel: JobChannel) -> str:
    """Add this machine to a file in the job's folder, and wait until the job may end."""
    machine: str = ray.get_runtime_context().get_node_id()
    channel.send(JobProgress(machine))
    with (job.folder / "machines").open("a") as file:
        file.write(f"{machine}\n")
    while not (job.folder / "go").exists():
        time.sleep(0.1)
    return machine


def machines(folder: Path) -> list[str]:
    file = folder / "machines"
    return file.read_text().splitlines() if file.exists() else []


def wait(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    # Notice a lost machine within seconds.
    config = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": config}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_jobs_of_a_lost_machine_are_repeated_on_another(cluster: Any, tmp_path: Path) -> None:
    workers = {worker.node_id: worker for worker in (cluster.add_node(num_cpus=1) for _ in "ab")}
    pool = RayPool(note_machine, cluster.address, None, 1)
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        assert pool.free
        pool.start(SweepJob("run", {}, {}, tmp_path, folder, "base", ()))
    assert not pool.free
    wait(lambda: all(map(machines, folders)))
    (lost,), (kept,) = map(machines, folders)
    assert {lost, kept} == set(workers)
    cluster.remove_node(workers[lost], allow_graceful=False)
    (folders[1] / "go").touch()
    wait(lambda: len(machines(folders[0])) == 2)
    (folders[0] / "go").touch()
    ends: dict[str, JobEnd] = {}
    until = time.monotonic() + 300
    while len(ends) < 2 and time.monotonic() < until:
        for job, event in pool.events(1):
            if not isinstance(event, JobProgress):
                ends[job.folder.name] = event
    pool.close()
    assert machines(folders[0]) == [lost, kept]
    assert ends == {"first": JobDone(kept), "second": JobDone(kept)}
