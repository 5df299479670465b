import copy

import numpy as np
import pytest
import torch

from densekd.analysis import flatness as module
from densekd.analysis.flatness import Noise, flatness
from densekd.data.dataset import PixelImages, Split, join_splits
from densekd.methods.paper import DenseOptions, dense
from densekd.methods.schedule import Schedule, Schedules
from densekd.seeds import Seeds
from densekd.training.learner import Learner

import reference
from support.tiny_learners import STEPS_OF_TWO, tiny_learner

TRAIN = join_splits([task.train for task in STEPS_OF_TWO])
NOISE = Noise((0.0, 0.01, 0.3), draws=3, seed=5)


@pytest.fixture(scope="module")
def learned() -> Learner:
    schedules = Schedules(Schedule(3, 0.05, batch_size=8), Schedule(2, 0.02, batch_size=8))
    each = tiny_learner(dense("gkd", DenseOptions(), schedules))
    for task in STEPS_OF_TWO:
        each.learn(task)
    return each


def plain_loss(each: Learner, data: Split) -> float:
    logits = each.logits(data.images).double().numpy()
    return reference.cross_entropy(logits, data.labels.tolist())


def test_the_losses_are_those_of_networks_moved_by_hand(learned: Learner) -> None:
    losses = flatness(learned, TRAIN, NOISE)
    assert isinstance(TRAIN.images, PixelImages)
    augment = learned.settings.augment
    for draw in range(3):
        generator = Seeds(5).at("flatness", draw).generator("noise")
        shapes = [p.shape for p in learned.network.parameters()]
        directions = [torch.randn(shape, generator=generator) for shape in shapes]
        for row, sigma in zip(losses, NOISE.sigmas, strict=True):
            moved = copy.deepcopy(learned.network).eval()
            with torch.no_grad():
                for parameter, direction in zip(moved.parameters(), directions, strict=True):
                    parameter.add_(sigma * direction)
                logits = moved(augment.normalise(TRAIN.images.pixels)).logits
            expected = reference.cross_entropy(logits.double().numpy(), TRAIN.labels.tolist())
            assert row[draw] == pytest.approx(expected, rel=1e-6)


def test_without_noise_it_is_the_plain_loss_in_every_draw(learned: Learner) -> None:
    first = flatness(learned, TRAIN, NOISE)[0]
    assert first == [first[0]] * 3
    assert first[0] == pytest.approx(plain_loss(learned, TRAIN), rel=1e-6)


def test_weights_and_running_statistics_stay_as_they_are(learned: Learner) -> None:
    before = copy.deepcopy(learned.network.state_dict())
    was_training = learned.network.training
    flatness(learned, TRAIN, NOISE)
    after = learned.network.state_dict()
    assert any("running_mean" in name for name in after)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(p.requires_grad for p in learned.network.parameters())
    assert learned.network.training == was_training


def test_more_noise_is_worse_on_average(learned: Learner) -> None:
    sigmas = (0.0, 0.05, 0.1, 0.2, 0.4)
    means = np.mean(flatness(learned, TRAIN, Noise(sigmas, draws=20)), axis=1)
    assert (np.diff(means) > 0).all()


def test_a_draw_depends_on_the_seed_and_on_nothing_else(learned: Learner) -> None:
    losses = flatness(learned, TRAIN, NOISE)
    assert flatness(learned, TRAIN, Noise((0.0, 0.3), draws=2, seed=5)) == [
        losses[0][:2],
        losses[2][:2],
    ]
    other = flatness(learned, TRAIN, Noise(NOISE.sigmas, draws=3, seed=6))
    assert other[0] == losses[0]
    assert not set(other[2]) & set(losses[2])
    assert len(set(losses[2])) == 3


def test_progress_counts_all_images(learned: Learner) -> None:
    seen: list[tuple[int, int]] = []
    flatness(learned, TRAIN, NOISE, lambda done, total: seen.append((done, total)))
    total = (1 + 3 * 2) * len(TRAIN)
    assert seen == [(n * len(TRAIN), total) for n in range(1, 8)]


@pytest.mark.parametrize("sigmas", [(), (0.1,), (0.0, 0.2, 0.1), (0.0, 0.0), (0.0, float("inf"))])
def test_sigmas_begin_with_0_and_grow(sigmas: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="Sigmas must begin with 0"):
        Noise(sigmas)


def test_noise_is_drawn_at_least_once() -> None:
    with pytest.raises(ValueError, match="at least once, not 0 times"):
        Noise(draws=0)


def test_the_usual_grid() -> None:
    noise = Noise()
    assert (len(noise.sigmas), noise.sigmas[1], noise.sigmas[-1]) == (21, 0.001, 0.02)
    assert noise.draws == 5


def test_losses_are_summed_in_a_type_that_the_device_has(
    learned: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apple's mps has no float64."""
    usual = flatness(learned, TRAIN, NOISE)
    monkeypatch.setattr(module, "working_dtype", lambda _: torch.float32)
    found = flatness(learned, TRAIN, NOISE)
    assert found != usual
    np.testing.assert_allclose(found, usual, rtol=1e-4)
