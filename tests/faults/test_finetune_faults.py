"""Whatever interrupts fine-tuning, the model is the one before it or the one after it."""

import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from densekd.model.frozen.finetune import FinetuneOptions, finetune_model
from densekd.model.frozen.finetune_training import Stages
from densekd.model.frozen.model import FrozenModel
from densekd.model.model import history
from densekd.model.options import TeachOptions
from densekd.model.request import TeachObserver
from densekd.model.teach import teach_model
from densekd.training.checkpoint import State, load_state, save_state

from support.faults import copied_before_each_change
from support.forked_commands import fork_server
from support.photos import fill
from support.tiny_vit import tiny_vit

EPOCHS = 2
VIT = "transformers.models.vit.modeling_vit"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on a tiny ViT; its head for held-out pictures is useless, so accuracy can rise."""
    place = tmp_path_factory.mktemp("first")
    images = fill(place / "images", {"red": 12, "green": 12, "blue": 12})
    teach_model(place / "model", images, TeachOptions(network=tiny_vit(place / "vit")))
    step = place / "model" / "steps" / "000" / "state"
    state = load_state(step)
    spoiled = {"tested_head.weight": torch.zeros_like(state.tensors["tested_head.weight"])}
    save_state(step, State(state.facts, state.tensors | spoiled))
    return place / "model"


def weights(model: Path) -> dict[str, torch.Tensor]:
    opened = FrozenModel.open(model)
    return {
        **{f"state.{name}": tensor for name, tensor in opened.tensors.items()},
        **{f"backbone.{k}": tensor for k, tensor in opened.backbone.backbone.state_dict().items()},
        "features": opened.photos.features,
    }


def same(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two models are the same, bit for bit."""
    return mine.keys() == other.keys() and all(torch.equal(x, other[k]) for k, x in mine.items())


def check_resumed(model: Path, stages: Stages, after: dict[str, torch.Tensor]) -> None:
    """Check that a model can be fine-tuned again, and is then the one that wasn't interrupted."""
    assert finetune_model(model, FinetuneOptions(stages, EPOCHS)).kept
    assert len(history(model)) == 2
    assert same(weights(model), after)


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["last", "all"])
def test_a_kill_before_each_rename_or_removal(stages: Stages, first: Path, tmp_path: Path) -> None:
    model, copies = Path(shutil.copytree(first, tmp_path / "model")), tmp_path / "copies"
    with copied_before_each_change(model, copies):
        assert finetune_model(model, FinetuneOptions(stages, EPOCHS)).kept
    before, after = weights(first), weights(model)
    # The number of the layer, whose name differs between versions of the library.
    places = {name: re.search(r"layers?\.(\d)", name) for name in after}
    changed = {
        place[1] for k, place in places.items() if place and not torch.equal(before[k], after[k])
    }
    assert changed == ({"2"} if stages == "last" else {"0", "1", "2"})
    left, found = sorted(copies.iterdir()), []
    assert len(left) > 10
    for number, copy in enumerate(left):
        found.append(len(history(copy)))
        assert same(weights(copy), before if found[-1] == 1 else after)
        # Which stages are trained doesn't change what is written when.
        if stages == "all" or number % 4 == 0:
            check_resumed(copy, stages, after)
    # From one moment on, the new step counts.
    assert found == sorted(found)
    assert {*found} == {1, 2}


class Waiting(TeachObserver):
    """Says how often it was asked whether to stop, and waits for a kill the n-th time."""

    def __init__(self, moment: int, reached: Any) -> None:
        self.left, self.reached = moment, reached

    def stop(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.reached.set()
            time.sleep(600)
        return False


def finetune_until(model: Path, moment: int, reached: Any) -> None:
    torch.set_num_threads(1)
    finetune_model(model, FinetuneOptions("all", EPOCHS), Waiting(moment, reached))


@pytest.mark.slow
def test_real_kills(first: Path, tmp_path: Path) -> None:
    context = fork_server("densekd.model.frozen.finetune", "pytest", VIT)
    model = Path(shutil.copytree(first, tmp_path / "undisturbed"))
    assert finetune_model(model, FinetuneOptions("all", EPOCHS)).kept
    after = weights(model)
    for moment in (1, 2, 3, 5):  # in the first epoch, later ones, and while features are renewed
        model, reached = Path(shutil.copytree(first, tmp_path / f"{moment}")), context.Event()
        process = context.Process(target=finetune_until, args=(model, moment, reached), daemon=True)
        process.start()
        assert reached.wait(300)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert same(weights(model), weights(first))
        check_resumed(model, "all", after)
