from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

from densekd import Learner, Settings
from densekd.data.dataset import FileImages, PixelImages
from densekd.methods.method import DataKind
from densekd.methods.terms import Distil, RatioWeight
from densekd.nn.network import load_weights
from densekd.training.engine import Engine
from densekd.training.settings import InferredAugment, LearnerSpec


@pytest.mark.parametrize(
    "wrong",
    [
        *({"epochs": value} for value in (0, -1, True, 1.5, "3", 10**400)),
        *({"memory": value} for value in ("a", 1.5, True, -1, 10**400)),
        *({"method": 3}, {"settings": 3}, {"backbone": 3}, {"backbone": "wrn-10-99999999"}),
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_a_learner_of_wrong_parts_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        Learner(**{"backbone": "resnet8", "method": "gkd", **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"image_size": value} for value in (0, 10**6, 2.5)),
        *({"workers": -1}, {"workers": 10**6}, {"seed": "a"}, {"seed": 10**30}),
    ],
    ids=str,
)
def test_settings_that_nobody_means_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        Settings(**wrong)


def test_the_ranks_of_a_machine_share_its_processors_not_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("densekd.data.batches.available_processors", lambda: 6)
    many = FileImages((b"",) * 5000, 8)
    assert Settings(engine=Engine("cpu")).workers_for(many) == 6
    assert Settings(engine=Engine("cpu", devices=2, nodes=3)).workers_for(many) == 3


def test_only_images_to_decode_or_to_crop_have_workers() -> None:
    files, memory = FileImages((b"",), 8), PixelImages(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    cropped = Settings(InferredAugment(crop="resized"), workers=4)
    assert [Settings(workers=4).workers_for(images) for images in (files, memory)] == [4, 0]
    assert [cropped.workers_for(images) for images in (files, memory)] == [4, 4]
    assert replace(cropped, workers=None).workers_for(memory) == 0


def test_weights_of_another_network_are_refused() -> None:
    load_weights(nn.Linear(2, 3), nn.Linear(2, 3).state_dict())
    for other in (nn.Linear(3, 3), nn.Linear(2, 3, bias=False), nn.Identity()):
        with pytest.raises(ValueError, match=r"doesn't fit this network.*backbone"):
            load_weights(nn.Linear(2, 3), other.state_dict())


def test_lambda_goes_with_the_rate_of_the_schedules_in_use() -> None:
    """ICaRL's distillation is as much smaller as its rate is higher than 0.1."""
    spec = LearnerSpec("resnet8", "icarl+rdkd", 5, Settings())
    for kind, usual in (("digits", 0.5), ("small", 5.0), ("imagenet100", 100.0)):
        method = spec.make_method(cast(DataKind, kind))
        weight = cast(Distil, method.terms["kd"]).weight
        assert isinstance(weight, RatioWeight)
        assert weight.base == pytest.approx(usual * 0.1 / method.increment[0].schedule.lr)
