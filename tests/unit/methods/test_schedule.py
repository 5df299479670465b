import dataclasses
import math
from typing import Any, cast

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from densekd.methods.schedule import Decay, Schedule, Schedules


def rates(schedule: Schedule) -> list[float]:
    return [schedule.lr_at(epoch) for epoch in range(schedule.epochs)]


def optimiser(lr: float) -> SGD:
    return SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)


@pytest.mark.parametrize(("epochs", "lr", "lr_end"), [(70, 0.1, 1e-4), (40, 0.01, 1e-4), (1, 1, 0)])
def test_the_cosine_is_that_of_torch(epochs: int, lr: float, lr_end: float) -> None:
    sgd = optimiser(lr)
    scheduler = CosineAnnealingLR(sgd, epochs, eta_min=lr_end)
    schedule = Schedule(epochs, lr, lr_end=lr_end)
    for epoch in range(epochs + 1):  # the one after the last is where the cosine ends
        assert schedule.lr_at(epoch) == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-9)
        sgd.step()
        scheduler.step()
    assert schedule.lr_at(epochs) == lr_end


def test_the_paper_trains_by_a_cosine_from_a_tenth() -> None:
    schedule = Schedule()
    assert schedule.lr_at(0) == 0.1
    assert schedule.lr_at(35) == pytest.approx((0.1 + 1e-4) / 2)
    assert schedule.lr_at(69) == pytest.approx(1.503e-4, rel=1e-3)


def test_milestones_are_those_of_torch() -> None:
    sgd = optimiser(0.1)
    scheduler = MultiStepLR(sgd, [2, 5])
    for rate in rates(Schedule(8, 0.1, "milestones", milestones=(2, 5))):
        assert rate == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-12)
        sgd.step()
        scheduler.step()


def test_constant_stays() -> None:
    assert rates(Schedule(5, 0.3, "constant")) == [0.3] * 5


def test_a_scaled_schedule_is_the_same_course_in_less_time() -> None:
    whole = Schedule(70, 0.1, "milestones", milestones=(30, 60), weight_decay=5e-4)
    half = whole.scaled(0.5)
    assert (half.epochs, half.milestones) == (35, (15, 30))
    assert dataclasses.replace(half, epochs=70, milestones=(30, 60)) == whole
    assert whole.scaled(1) == whole
    assert whole.scaled(0.1).milestones == (3, 6)
    assert Schedule(40, 0.01).scaled(0.1) == Schedule(4, 0.01)


@pytest.mark.parametrize(("share", "finish"), [(2, 40), (1, 20), (0.5, 10), (0.25, 5), (0.01, 5)])
def test_what_finishes_a_task_is_never_shorter_than_a_quarter(share: float, finish: int) -> None:
    schedules = Schedules(Schedule(100), Schedule(50), Schedule(20))
    scaled = schedules.scaled(share)
    assert (scaled.base, scaled.increment) == (
        schedules.base.scaled(share),
        Schedule(50).scaled(share),
    )
    assert scaled.finish == Schedule(finish)
    assert Schedules(Schedule(100)).scaled(share).finish is None


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.01, 1 / 70])
def test_however_short_there_is_an_epoch_at_the_first_rate(share: float) -> None:
    short = Schedule(70, 0.1, "milestones", milestones=(20, 60)).scaled(share)
    assert rates(short) == [0.1]
    assert rates(Schedule(70, 0.1).scaled(share)) == [0.1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "Can't train for 0 epochs"),
        ({"lr": 0.0}, "at rate 0.0"),
        ({"lr": -0.1}, "at rate -0.1"),
        ({"lr": float("nan")}, "at rate nan"),
        ({"lr": float("inf")}, "at rate inf"),
        ({"batch_size": 0}, "in batches of 0"),
        ({"lr_end": -1e-4}, "must be numbers of at least 0"),
        ({"momentum": -0.9}, "must be numbers of at least 0"),
        ({"weight_decay": -1e-4}, "must be numbers of at least 0"),
        ({"factor": -0.1}, "must be numbers of at least 0"),
        ({"factor": float("nan")}, "must be numbers of at least 0"),
        ({"clamp": 0.0}, "clamp must be a positive number, not 0.0"),
        ({"clamp": float("nan")}, "clamp must be a positive number, not nan"),
        ({"epochs": 2.5}, "Can't train for 2.5 epochs"),
        ({"epochs": "3"}, "Can't train for 3 epochs"),
        ({"batch_size": 2.5}, "in batches of 2.5"),
        ({"decay": cast(Decay, "linear")}, "decay='linear' is not one of 'cosine'"),
        ({"milestones": (20,)}, "milestones go with decay='milestones', not 'cosine'"),
        ({"decay": "constant", "milestones": (20,)}, "not 'constant'"),
    ],
)
def test_a_schedule_that_can_not_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Schedule(**options)


def test_a_warm_up_grows_linearly_and_is_shortened_too() -> None:
    schedule = Schedule(10, 0.4, lr_end=0.0, warmup=3)
    assert [schedule.lr_at(epoch) for epoch in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert schedule.lr_at(9) == pytest.approx(0.2 * (1 + math.cos(math.pi * 6 / 7)))
    assert schedule.scaled(0.5).warmup == 2
    assert schedule.scaled(0.1).warmup == 0
    steps = Schedule(10, 1.0, "milestones", milestones=(5,), warmup=1)
    assert [steps.lr_at(epoch) for epoch in (0, 1, 5)] == pytest.approx([0.5, 1.0, 0.1])


def test_optimisers_and_warm_ups_that_can_not_be() -> None:
    with pytest.raises(ValueError, match="optimiser"):
        Schedule(optimiser="adam")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup must be from 0 to below the 5 epochs"):
        Schedule(5, warmup=5)
    with pytest.raises(ValueError, match="momentum must be below 1 for adamw"):
        Schedule(optimiser="adamw", momentum=1.0)


def test_each_optimiser_has_its_usual_rate_by_default() -> None:
    assert Schedule().lr == 0.1
    assert Schedule(optimiser="adamw").lr == 0.001
    assert Schedule(lr=0.1, optimiser="adamw").lr == 0.1


@pytest.mark.parametrize("warmup", [0, 2])
def test_a_rate_below_the_end_of_the_cosine_stays(warmup: int) -> None:
    schedule = Schedule(10, 5e-5, warmup=warmup)
    assert [schedule.lr_at(epoch) for epoch in range(warmup, 10)] == [5e-5] * (10 - warmup)
