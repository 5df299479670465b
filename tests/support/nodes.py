"""Processes that join one another over loopback, as those of several machines do."""

import os
import socket
import time
from pathlib import Path

from densekd.jobs.events import JobChannel, JobProgress
from densekd.sweeps.jobs import SweepJob


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(port: int, rank: int) -> dict[str, str]:
    """The variables of a process that is alone on machine number ``rank``."""
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    node = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": str(rank)}
    return {**os.environ, **node, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def note_machine(job: SweepJob, channel: JobChannel) -> str:
    """Add this machine to a file in the job's folder, and wait until the job may end."""
    import ray

    machine: str = ray.get_runtime_context().get_node_id()
    channel.send(JobProgress(machine))
    with (job.folder / "machines").open("a") as file:
        file.write(f"{machine}\n")
    while not (job.folder / "go").exists():
        time.sleep(0.1)
    return machine
