"""The parts of the cluster engine that need no cluster; tests/faults has the others."""

import os
import sys
from pathlib import Path

import pytest

from densekd.jobs.events import JobChannel, JobDone, JobFailed, JobProgress
from densekd.sweeps.ray import RayPool, _enter, _Mailbox, _task

from support.nodes import free_port


def nothing(job: object, line: JobChannel) -> None:
    raise AssertionError(job)


def test_without_ray_one_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(ValueError, match=r"pip install 'densekd\[ray\]'"):
        RayPool(nothing, None, None, 1)


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    for address in (f"127.0.0.1:{free_port()}", f"ray://127.0.0.1:{free_port()}"):
        with pytest.raises(ValueError, match=f"no Ray cluster at {address}"):
            RayPool(nothing, address, None, 1)


def test_the_desk_gives_each_news_once_and_in_order() -> None:
    mailbox = _Mailbox()
    mailbox.send("a", JobProgress("begins"))
    mailbox.send("b", JobDone())
    assert mailbox.take() == [("a", JobProgress("begins")), ("b", JobDone())]
    assert mailbox.take() == []
    assert not mailbox.stopping("a")
    mailbox.ask_to_stop("a")
    assert mailbox.stopping("a")
    assert not mailbox.stopping("b")
    mailbox.ask_to_stop()
    assert mailbox.stopping("b")


def test_paths_mean_the_same_to_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENSEKD_DATA", "before")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    _enter(tmp_path / "work", {"DENSEKD_DATA": "sets"})
    assert (Path.cwd(), os.environ["DENSEKD_DATA"]) == (tmp_path / "work", "sets")
    ended = _task(nothing, None, (None, "a"), (tmp_path / "none", {}), 1)
    assert isinstance(ended, JobFailed)
    assert "all machines of the cluster" in ended.reason
