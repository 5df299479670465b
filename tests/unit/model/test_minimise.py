"""Both are compared with SciPy's, whose results they must reach."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from densekd.model.minimise import golden_section, lbfgs


def logistic(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(200, 30, generator=generator, dtype=torch.float64)
    scores = features @ torch.randn(30, generator=generator, dtype=torch.float64)
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    return features, (scores + noise > 0).double()


@pytest.mark.parametrize("seed", range(5))
def test_lbfgs_finds_the_smallest_logistic_loss(seed: int) -> None:
    features, labels = logistic(seed)

    def loss(weight: Tensor) -> tuple[float, Tensor]:
        scores = features @ weight
        value = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
        gradient = features.T @ (scores.sigmoid() - labels) / len(labels) + 0.02 * weight
        return float(value + 0.01 * weight.square().sum()), gradient

    found = lbfgs(loss, torch.zeros(30, dtype=torch.float64), 100, 1e-8)

    def in_numpy(place: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = loss(torch.from_numpy(place))
        return value, gradient.numpy()

    reference = optimize.minimize(in_numpy, np.zeros(30), jac=True, tol=1e-9)
    assert float(loss(found)[1].abs().max()) <= 1e-8
    assert np.allclose(found.numpy(), reference.x, atol=1e-5)


def test_lbfgs_goes_through_a_curved_valley() -> None:
    def rosenbrock(place: Tensor) -> tuple[float, Tensor]:
        x = place.numpy()
        return float(optimize.rosen(x)), torch.from_numpy(optimize.rosen_der(x))

    found = lbfgs(rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64), 200, 1e-9)
    assert torch.allclose(found, torch.ones(2, dtype=torch.float64), atol=1e-6)


def test_lbfgs_stays_where_the_gradient_is_zero_and_where_no_step_helps() -> None:
    start = torch.ones(3)
    assert torch.equal(lbfgs(lambda at: (0.0, torch.zeros(3)), start, 9, 1e-5), start)
    assert torch.equal(lbfgs(lambda at: (float(at.sum()), -torch.ones(3)), start, 9, 1e-5), start)


@pytest.mark.parametrize("lowest", [-1.0, 0.0, 0.3, 2.0])
def test_golden_section_finds_the_valley_also_at_an_end(lowest: float) -> None:
    def loss(place: float) -> float:
        return math.cosh(place - lowest)

    reference = optimize.minimize_scalar(loss, bounds=(0, 2), method="bounded").x
    assert golden_section(loss, 0, 2) == pytest.approx(float(reference), abs=1e-4)
