"""Processes that join one another over loopback, as those of several machines do."""

import os
import socket
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(port: int, rank: int) -> dict[str, str]:
    """The variables of a process that is alone on machine number ``rank``."""
    tests = str(Path(__file__).parents[1])
    paths = [tests, *filter(None, [os.environ.get("PYTHONPATH")])]
    node = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": str(rank)}
    return {**os.environ, **node, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
