"""Whatever interrupts an update, the model is the one before it or the one after it."""

import itertools
import os
import random
import resource
import shutil
import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from densekd.model.frozen.model import FrozenModel
from densekd.model.model import Model, Prediction, history
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver
from densekd.model.teach import teach_model
from densekd.model.trained.model import TrainedModel
from densekd.training.callbacks import Stopped, TrainingProgress

from support.faults import copied_before_each_change, full_disk, small_disk
from support.forked_commands import fork_server
from support.photos import TINY, fill, picture
from support.tiny_vit import tiny_vit

# Of each class. For a model that is trained, 34 images without those to test on and exemplars: two
# batches in each of two epochs. For a frozen one, three groups of photos, after which it is asked
# whether to stop.
COUNTS = {"trained": 20, "frozen": 9}
# What a worker imports; importing it anew takes longer than the update.
PRELOADED = [
    *(f"densekd.model.{name}" for name in ("teach", "frozen.request", "trained.request")),
    *("hypothesis", "pytest", "scipy.optimize", "transformers.models.vit.modeling_vit"),
]
SHOWN = [picture(name, 500) for name in ("red", "green", "blue", "7")]


@pytest.fixture(scope="module", params=["trained", "frozen"])
def options(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TeachOptions:
    """Of a model that is trained, and of one on a frozen backbone."""
    if request.param == "trained":
        return TINY
    return TeachOptions(network=tiny_vit(tmp_path_factory.mktemp("vit")))


@pytest.fixture(scope="module")
def count(options: TeachOptions) -> int:
    """The number of images of each class."""
    return COUNTS["trained" if options.trains else "frozen"]


@pytest.fixture(scope="module")
def images(count: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("new") / "images", {"blue": count, "7": count})


class Snapshot(NamedTuple):
    """Everything that a model consists of, except times."""

    facts: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    predictions: list[Prediction]


def snapshot(model: Path) -> Snapshot:
    opened = Model.open(model)
    test = opened.stored_images(tested=True)
    facts = {**opened.facts, "when": "", "update": {**opened.facts["update"], "seconds": 0}}
    tensors = {**test.images.state(), "test labels": test.labels}
    if isinstance(opened, FrozenModel):
        tensors |= {**opened.tensors, "features": opened.photos.features}
    elif isinstance(opened, TrainedModel):
        tensors |= opened.learner.state().tensors
    return Snapshot(facts, tensors, opened.predict(SHOWN, top=4))


def check_equal(model: Path, other: Snapshot) -> None:
    """Check that two models are the same, bit for bit."""
    mine = snapshot(model)
    assert (mine.facts, mine.predictions) == (other.facts, other.predictions)
    assert mine.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in mine.tensors.items())


@pytest.fixture(scope="module")
def first(options: TeachOptions, count: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows red and green."""
    place = tmp_path_factory.mktemp("first")
    teach_model(place / "model", fill(place / "images", {"red": count, "green": count}), options)
    return place / "model"


@pytest.fixture
def model(first: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(first, tmp_path / "model")


@pytest.fixture(scope="module")
def before(first: Path) -> Snapshot:
    """The model before the update."""
    return snapshot(first)


@pytest.fixture(scope="module")
def after(
    first: Path, images: Path, options: TeachOptions, tmp_path_factory: pytest.TempPathFactory
) -> Snapshot:
    """The model after an undisturbed update."""
    model = shutil.copytree(first, tmp_path_factory.mktemp("after") / "model")
    teach_model(model, images, options)
    return snapshot(model)


@pytest.fixture(scope="module")
def ends(before: Snapshot, after: Snapshot) -> tuple[Snapshot, Snapshot]:
    """The only two that an interrupted update may leave."""
    return before, after


def check_either(model: Path, before: Snapshot, after: Snapshot) -> int:
    """Check that a model is one or the other, as its history says; gives the number of steps."""
    steps = len(history(model))
    check_equal(model, before if steps == 1 else after)
    return steps


class Counting(TeachObserver):
    """Counts events, and kills the process so many seconds after one of them."""

    def __init__(self, fatal: int = 0, seconds: float = 0.0) -> None:
        self.fatal, self.seconds, self.count = fatal, seconds, 0
        self.add()  # the update begins

    def add(self) -> None:
        self.count += 1
        if self.count == self.fatal:
            # From a thread of this process, which is as late on a busy machine as the update is.
            kill = threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL))
            kill.daemon = True
            kill.start()

    def planned(self, plan: Plan) -> None:
        self.add()

    def doing(self, what: str) -> None:
        self.add()

    def report(self, report: TrainingProgress) -> None:
        self.add()

    def stop(self) -> bool:
        self.add()
        return False


def killed(model: Path, images: Path, options: TeachOptions, fatal: int, seconds: float) -> None:
    torch.set_num_threads(1)
    teach_model(model, images, options, Counting(fatal, seconds))


@pytest.mark.slow
def test_kills_at_random_moments(
    options: TeachOptions,
    first: Path,
    before: Snapshot,
    after: Snapshot,
    images: Path,
    tmp_path: Path,
) -> None:
    context = fork_server(*PRELOADED)
    draw, whole, kills = random.Random(0), Counting(), 0
    teach_model(shutil.copytree(first, tmp_path / "whole"), images, options, whole)
    for number in range(20):
        model = shutil.copytree(first, tmp_path / f"{number}")
        moment = draw.randint(1, whole.count), draw.uniform(0, 0.03)
        process = context.Process(target=killed, args=(model, images, options, *moment))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), "the update failed"
        kills += process.exitcode != 0
        check_either(model, before, after)
        teach_model(model, images, options)
        assert check_either(model, before, after) == 2
    assert kills >= 14


@pytest.mark.slow
def test_a_kill_before_each_rename_or_removal(
    options: TeachOptions,
    before: Snapshot,
    after: Snapshot,
    images: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    copies = tmp_path / "copies"
    with copied_before_each_change(model, copies):
        teach_model(model, images, options)
    left, found = sorted(copies.iterdir()), []
    assert len(left) > 6
    for copy in left:
        found.append(check_either(copy, before, after))
        teach_model(copy, images, options)
        assert check_either(copy, before, after) == 2
    # From one moment on, the new step counts.
    assert found == sorted(found)
    assert {*found} == {1, 2}


def test_a_killed_first_update_leaves_no_model(
    options: TeachOptions, images: Path, tmp_path: Path
) -> None:
    model, copies = tmp_path / "model", tmp_path / "copies"
    model.mkdir()
    with copied_before_each_change(model, copies):
        teach_model(model, images, options)
    middle = sorted(copies.iterdir())[3]
    with pytest.raises(ValueError, match="There is no model in"):
        Model.open(middle)
    teach_model(middle, images, options)
    check_equal(middle, snapshot(model))


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(
    name: str,
    options: TeachOptions,
    ends: tuple[Snapshot, Snapshot],
    images: Path,
    model: Path,
) -> None:
    """Each attempt can write three files more than the one before."""
    for most in itertools.count(0, 3):
        failed = ""
        try:
            with full_disk(name, most):
                teach_model(model, images, options)
        except ValueError as error:
            failed = str(error)
        if not failed:
            break
        assert f"no space left on the disk of {model}" in failed
        check_either(model, *ends)
        assert [*model.rglob(".*.tmp")] == []
    assert most >= 3
    check_equal(model, ends[1])


def test_a_real_full_disk(
    options: TeachOptions,
    first: Path,
    before: Snapshot,
    after: Snapshot,
    images: Path,
    tmp_path: Path,
) -> None:
    place = tmp_path / "disk"
    page = resource.getpagesize()
    pages = sum(-(-file.stat().st_size // page) for file in first.rglob("*") if file.is_file())
    with small_disk(place, (pages + 2) * page) as enlarge:
        model = shutil.copytree(first, place / "model")
        with pytest.raises(ValueError, match="no space left on the disk of"):
            teach_model(model, images, options)
        assert check_either(model, before, after) == 1
        enlarge()
        teach_model(model, images, options)
        check_equal(model, after)


class Leaving(TeachObserver):
    """Stops an update when it is asked for the n-th time."""

    def __init__(self, time: int) -> None:
        self.left = time

    def stop(self) -> bool:
        self.left -= 1
        return self.left == 0


def test_a_damaged_checkpoint_is_skipped(
    options: TeachOptions,
    after: Snapshot,
    images: Path,
    model: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # After each of 40 images and each batch; or after each photo that is hashed, and each eight.
    hashed = sum(file.is_file() for file in images.rglob("*"))
    with pytest.raises(Stopped):
        teach_model(model, images, options, Leaving(43 if options.trains else hashed + 2))
    newest = max(model.glob("pending/*/*/*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    teach_model(model, images, options)
    assert "is damaged: it isn't what was saved." in caplog.text
    check_equal(model, after)
