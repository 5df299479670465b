"""Fine-tuning a model on the small pictures that it keeps, by the real network."""

import shutil
from pathlib import Path

import pytest
import torch

from densekd.model.frozen.finetune import FinetuneOptions, finetune_model, learned_task_sizes
from densekd.model.frozen.model import FrozenModel
from densekd.model.model import history, undo
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver
from densekd.model.teach import teach_model
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import State, load_state, save_state

from support.photos import TINY, fill, picture

DEFAULT, SHORT = TeachOptions(), FinetuneOptions(epochs=2)
SECOND = {"blue": 6}


class Recorder(TeachObserver):
    """Records what is reported, and stops after some batches."""

    def __init__(self, batches: int | None = None) -> None:
        self.left = batches
        self.plans: list[Plan] = []
        self.repeats: list[int | str] = []

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)

    def repeated(self, step: int) -> None:
        self.repeats.append(step)

    def finetuned_before(self) -> None:
        self.repeats.append("fine-tuned")

    def stop(self) -> bool:
        if self.left is not None:
            self.left -= 1
        return self.left == 0


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two steps, which predicts all of its held-out pictures right."""
    place = tmp_path_factory.mktemp("first")
    teach_model(place / "model", fill(place / "images", {"red": 6, "green": 6}), DEFAULT)
    teach_model(place / "model", fill(place / "images", SECOND), DEFAULT)
    return place / "model"


@pytest.fixture
def model(first: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(first, tmp_path / "model"))


@pytest.fixture
def worse(model: Path) -> Path:
    """The same with a useless head for its held-out pictures, so that accuracy can rise."""
    state = load_state(model / "steps" / "001" / "state")
    spoiled = {"tested_head.weight": torch.zeros_like(state.tensors["tested_head.weight"])}
    save_state(model / "steps" / "001" / "state", State(state.facts, state.tensors | spoiled))
    return model


def test_it_is_kept_if_accuracy_rises(worse: Path, first: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    result = finetune_model(worse, SHORT, recorder)
    (plan,) = recorder.plans
    assert plan.replayed == {"green": 4, "red": 4, "blue": 4}
    assert plan.phases == (("fine-tuning", 2),)
    assert result.kept
    update = result.update
    assert update.before is not None
    assert (update.step, update.learned, update.images, update.finetuned) == (2, (), 15, True)
    assert str(update.edit) == "fine-tuned on 15 photos"
    assert update.before.all == pytest.approx(1 / 3)
    assert update.after.all == 1.0
    before, after = FrozenModel.open(first), FrozenModel.open(worse)
    assert (after.facts["backbone"], after.facts["photos"]) == (2, [2])
    assert after.facts["learned_in"] == before.facts["learned_in"]
    assert torch.equal(after.labels, before.labels)
    old, new = (each.backbone.backbone.state_dict() for each in (before, after))
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    # Stages 6 and 7 and the last layer; batch normalisation keeps its statistics.
    blocks = {name.split(".")[1] for name in changed if name.startswith("_blocks")}
    assert blocks == {"11", "12", "13", "14", "15"}
    assert "_conv_head.weight" in changed
    assert not any("running" in name for name in changed)
    computed = after.backbone.features(after.crops(after.photos.jpegs))
    assert torch.allclose(after.photos.features.float(), computed, atol=1e-3)
    names = ["red", "green", "blue"]
    assert [g.name for g in after.predict([picture(n, 99) for n in names])] == names
    # What was done is not done again, and a further class is learned with the new backbone.
    again = Recorder()
    assert finetune_model(worse, SHORT, again) == result
    assert teach_model(worse, fill(tmp_path / "images", SECOND), DEFAULT, again).step == 1
    assert again.repeats == ["fine-tuned", 1]
    teach_model(worse, fill(tmp_path / "images", {"yellow": 2}), DEFAULT)
    opened = FrozenModel.open(worse)
    assert (opened.facts["backbone"], opened.facts["photos"]) == (2, [2, 3])
    assert learned_task_sizes(opened) == (2, 1, 1)
    assert undo(worse, 1).update.learned == ("blue",)


def test_it_is_not_kept_if_accuracy_does_not_rise(model: Path) -> None:
    result = finetune_model(model, SHORT)
    assert not result.kept
    assert result.update.before is not None
    assert (result.update.before.all, len(history(model))) == (1.0, 2)
    (pending,) = (model / "pending").iterdir()
    assert [file.name for file in pending.iterdir()] == ["rejected.json"]
    recorder = Recorder()
    assert finetune_model(model, SHORT, recorder) == result
    assert (recorder.plans, recorder.repeats) == ([], ["fine-tuned"])


def test_an_interruption_changes_no_bit(worse: Path, tmp_path: Path) -> None:
    undisturbed = Path(shutil.copytree(worse, tmp_path / "undisturbed"))
    with pytest.raises(Stopped):
        finetune_model(worse, SHORT, Recorder(1))  # at the end of the first epoch
    assert len(history(worse)) == 2
    recorder = Recorder()
    finetune_model(worse, SHORT, recorder)
    assert recorder.plans[0].resumed
    finetune_model(undisturbed, SHORT)
    mine, theirs = (FrozenModel.open(each) for each in (worse, undisturbed))
    for one, other in (
        (mine.tensors, theirs.tensors),
        (mine.backbone.state_dict(), theirs.backbone.state_dict()),
    ):
        assert all(torch.equal(x, other[name]) for name, x in one.items())
    assert torch.equal(mine.photos.features, theirs.photos.features)


def test_a_budget_limits_the_epochs(worse: Path) -> None:
    recorder = Recorder()
    result = finetune_model(worse, FinetuneOptions(budget=1e-6), recorder)
    assert recorder.plans[0].phases == (("fine-tuning", 1),)
    assert result.update.epochs == 1


def test_what_can_not_be_fine_tuned(tmp_path: Path) -> None:
    trained, untested = tmp_path / "trained", tmp_path / "untested"
    teach_model(trained, fill(tmp_path / "images", {"red": 6, "green": 6}), TINY)
    with pytest.raises(ValueError, match="is trained at every update"):
        finetune_model(trained, SHORT)
    teach_model(untested, fill(tmp_path / "images", {"red": 2, "green": 2}), DEFAULT)
    with pytest.raises(ValueError, match="no photos to test on"):
        finetune_model(untested, SHORT)
    state = load_state(untested / "steps" / "000" / "state")
    moved = {"labels": torch.zeros_like(state.tensors["labels"])}
    save_state(untested / "steps" / "000" / "state", State(state.facts, state.tensors | moved))
    with pytest.raises(ValueError, match="keeps no image of 'red'"):
        finetune_model(untested, SHORT)
    with pytest.raises(ValueError, match="There is no model"):
        finetune_model(tmp_path / "nothing", SHORT)


def test_wrong_options_are_refused() -> None:
    for wrong in ({"stages": "first"}, {"epochs": 0}, {"budget": -1.0}, {"lambda_base": -1.0}):
        with pytest.raises(ValueError, match=r"first|0 epochs|budget|lambda_base"):
            FinetuneOptions(**wrong)
