"""The classifier of PODNet and AFC, with several proxies per class."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from densekd.nn.classifier import Classifier

# scikit-learn's default number of starts when PODNet was written.
_STARTS = 10
_NOISE = 0.01


class ProxyClassifier(Classifier):
    r"""PODNet's local similarity classifier: each class is near one of several proxies.

    With unit vectors f^ and w^, the similarity to proxy k of class c is
    ``s_ck = -|f^ - w^_ck|^2 = 2 <f^, w^_ck> - 2``, and

    .. math:: z_c = \eta \sum_k \mathrm{softmax}_k(s_{ck}) \, s_{ck}

    A block is ``[classes * proxies, D]``, the proxies of a class in succession, and is drawn from
    N(0, 1/D). The scale eta is learned.
    """

    def __init__(self, width: int, proxies: int = 10) -> None:
        super().__init__(width)
        if proxies < 1:
            raise ValueError(f"A class can't have {proxies} proxies, it needs at least one.")
        self.proxies = proxies
        self.eta = nn.Parameter(torch.ones(()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task."""
        return tuple(len(block) // self.proxies for block in self.blocks)

    def forward(self, features: Tensor) -> Tensor:
        """``[B, D]`` to logits ``[B, classes]``."""
        return self.eta * self.scores(features)

    def scores(self, features: Tensor) -> Tensor:
        """``[B, D]`` to scores ``[B, classes]`` from -4 to 0, before scaling."""
        unit = normalize(features, dim=1)
        return torch.cat([self._scores(unit, block) for block in self.blocks], dim=1)

    def _scores(self, unit: Tensor, block: Tensor) -> Tensor:
        near = 2 * linear(unit, normalize(block, dim=1)) - 2
        near = near.view(len(unit), len(block) // self.proxies, self.proxies)
        return (near.softmax(2) * near).sum(2)

    def _block(self, classes: int) -> nn.Parameter:
        like = next(self.parameters())
        block = torch.empty(classes * self.proxies, self.width)
        return nn.Parameter(nn.init.kaiming_normal_(block, nonlinearity="linear").to(like))

    def _centres(self, units: Tensor, seed: int) -> Tensor:
        """Return the centres of k-means with one cluster per proxy.

        A class of fewer distinct images repeats them with noise of about a hundredth of their
        length, since equal proxies would stay equal.
        """
        points = units.cpu().numpy()
        distinct = np.unique(points, axis=0)
        seed %= 2**32  # scikit-learn's range
        if len(distinct) < self.proxies:
            shape = self.proxies, self.width
            noise = np.random.default_rng(seed).normal(0, _NOISE / self.width**0.5, shape)
            centres = np.resize(distinct, shape) + noise
        else:
            centres = _clustered(points, self.proxies, seed)
        return torch.from_numpy(centres).to(units)


def _clustered(points: NDArray[Any], clusters: int, seed: int) -> NDArray[Any]:
    # Imported here since they take seconds and other classifiers don't need them.
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # Several threads would add up their sums in the order in which they finish.
    with threadpool_limits(1):
        found = KMeans(clusters, n_init=_STARTS, random_state=seed).fit(points)
    return np.asarray(found.cluster_centers_)
