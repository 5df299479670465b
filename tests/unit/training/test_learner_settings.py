from typing import Any

import pytest
from torch import nn

from densekd import Learner, Settings
from densekd.nn.network import load_weights


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


def test_weights_of_another_network_are_refused() -> None:
    load_weights(nn.Linear(2, 3), nn.Linear(2, 3).state_dict())
    for other in (nn.Linear(3, 3), nn.Linear(2, 3, bias=False), nn.Identity()):
        with pytest.raises(ValueError, match=r"doesn't fit this network.*backbone"):
            load_weights(nn.Linear(2, 3), other.state_dict())
