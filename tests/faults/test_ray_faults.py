"""Jobs on a Ray cluster of several machines, which Ray itself imitates on this one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from densekd.jobs.events import JobDone, JobEvent, JobProgress
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.ray import RayPool

from support.nodes import environment, note_machine


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    ray: Any = pytest.importorskip("ray")  # here, since only one process runs this file
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", environment(0, 0)["PYTHONPATH"])  # of workers
    # Notice a lost machine within seconds.
    config = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    head = {
        **{"num_cpus": 0, "include_dashboard": False, "_system_config": config},
        # Nobody reads logs, and no machine is added by itself.
        **{"include_log_monitor": False, "no_monitor": True},
    }
    made: Any = Cluster(initialize_head=True, head_node_args=head)
    yield made
    ray.shutdown()
    made.shutdown()


class Waiting:
    """Waits for what jobs do, and keeps how they end."""

    def __init__(self, pool: RayPool) -> None:
        self.pool = pool
        self.ends: dict[str, JobEvent] = {}

    def __call__(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + 600
        while not condition():
            for job, event in self.pool.events(0.2):
                if not isinstance(event, JobProgress):
                    self.ends[job.folder.name] = event
            assert all(isinstance(event, JobDone) for event in self.ends.values()), self.ends
            assert time.monotonic() < until


def machines(folder: Path) -> list[str]:
    file = folder / "machines"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_jobs_of_a_lost_machine_are_repeated_on_another(cluster: Any, tmp_path: Path) -> None:
    workers = {worker.node_id: worker for worker in (cluster.add_node(num_cpus=1) for _ in "ab")}
    pool = RayPool(note_machine, cluster.address, None, 1)
    first, second = folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        assert pool.free
        pool.start(SweepJob("runs", {}, {}, folder, "base", False))
    assert not pool.free
    wait = Waiting(pool)
    wait(lambda: all(map(machines, folders)))
    (lost,), (kept,) = map(machines, folders)
    assert {lost, kept} == set(workers)
    cluster.remove_node(workers[lost], allow_graceful=False)
    (second / "go").touch()
    wait(lambda: len(machines(first)) == 2)
    (first / "go").touch()
    wait(lambda: len(wait.ends) == 2)
    pool.close()
    assert machines(first) == [lost, kept]
    assert wait.ends == {"first": JobDone(kept), "second": JobDone(kept)}
