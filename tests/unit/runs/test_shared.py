"""Networks that are trained once and shared."""

from pathlib import Path

import pytest
import torch

from densekd.runs.observer import RunObserver
from densekd.runs.shared import SharedTraining
from densekd.training.engine import Engine

from support.datasets import dataset


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return monkeypatch


def shared(parent: Path, **settings: int) -> SharedTraining:
    return SharedTraining(parent, settings, dataset(4, 3).train, Engine("cpu", precision="32"))


def train(parent: Path, **settings: int) -> Path:
    with shared(parent, **settings).locked("base", RunObserver()) as folder:
        return folder


def test_a_network_is_trained_when_the_block_ends_well(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), shared(tmp_path).locked("base", RunObserver()):
        raise ZeroDivisionError
    assert not shared(tmp_path).trained
    assert train(tmp_path) == shared(tmp_path).folder
    assert shared(tmp_path).trained
    assert not shared(tmp_path, seed=1).trained


def test_training_again_with_other_threads_is_explained(
    tmp_path: Path, threads: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = train(tmp_path, seed=1)
    threads.setattr(torch, "get_num_threads", lambda: 1)
    assert train(tmp_path, seed=2) != first
    assert caplog.messages == []
    assert train(tmp_path, seed=1) != first
    (message,) = caplog.messages
    assert "trained with threads = 2" in message
    assert "again with threads = 1" in message
    train(tmp_path, seed=1)
    assert len(caplog.messages) == 1
