"""Classifiers that grow: one block of weights per task.

Each block has its own matrix product. One product with a larger matrix could round the old classes'
logits differently, so growing would change them.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from densekd.precision import working_dtype

Head = Literal["cosine", "linear", "bias", "proxies"]

# For imprinting proxies by k-means: the number of starts, scikit-learn's default when PODNet was
# written, and the noise added to proxies that would be equal.
_STARTS = 10
_NOISE = 0.01


class Classifier(nn.Module):
    """Base class: a block of weights ``[classes, D]`` for each task, D being ``width``."""

    proxies = 1  # rows of a block for each class

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"A classifier of {width} features is not possible.")
        self.width = width
        self.blocks = nn.ParameterList()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task."""
        return tuple(len(block) // self.proxies for block in self.blocks)

    @property
    def classes(self) -> int:
        """The number of classes so far."""
        return sum(self.sizes)

    def grow(self, classes: int) -> None:
        """Add a block of ``classes`` classes, usually drawn from U(-1/sqrt(D), 1/sqrt(D))."""
        if classes < 1:
            raise ValueError(f"Can't grow by {classes} classes.")
        self.blocks.append(self._block(classes))

    @torch.no_grad()
    def imprint(self, features: Tensor, labels: Tensor, seed: int) -> None:
        """Set the newest block from features of its classes instead of at random.

        The weights point towards the L2-normalised features of their class, and are as long as the
        older weights on average. The labels ``[n]`` of the features ``[n, D]`` count from 0 within
        the newest block. The seed is for classifiers that draw random numbers here.
        """
        if len(self.blocks) < 2:
            raise ValueError("Imprinting needs older weights: grow by a first task before.")
        *old, new = self.blocks
        centres = [self._centres(units, seed) for units in self._units(features, labels)]
        length = torch.cat(old).to(centres[0]).norm(dim=1).mean()
        new.copy_(length * torch.cat(centres))

    def _units(self, features: Tensor, labels: Tensor) -> list[Tensor]:
        """L2-normalise the features, grouped by class of the newest block."""
        if labels.ndim != 1 or features.shape != (len(labels), self.width):
            raise ValueError(
                f"Imprinting needs features [n, {self.width}] and labels [n], not "
                f"{list(features.shape)} and {list(labels.shape)}."
            )
        units = normalize(features.detach().to(working_dtype(features.device)), dim=1)
        found = [units[(labels == label).to(units.device)] for label in range(self.sizes[-1])]
        if sum(map(len, found)) != len(labels) or not all(map(len, found)):
            raise ValueError(
                f"Each of the {len(found)} new classes needs an image, and no other label may "
                f"occur; they have {', '.join(str(len(x)) for x in found)} of {len(labels)} images."
            )
        return found

    def _centres(self, units: Tensor, seed: int) -> Tensor:
        """Return one class's rows of an imprinted block, before scaling."""
        raise ValueError(f"A {type(self).__name__} can't be imprinted: use a CosineClassifier.")

    def _block(self, classes: int) -> nn.Parameter:
        return self._drawn(classes, self.width)

    def _drawn(self, *shape: int) -> nn.Parameter:
        bound = 1 / math.sqrt(self.width)
        like = next(self.parameters(), torch.empty(0))
        return nn.Parameter(torch.empty(shape).uniform_(-bound, bound).to(like))


class CosineClassifier(Classifier):
    """Cosines times one learnable scale: ``z_c = sigma <f, w_c> / (|f| |w_c|)``."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """``[B, D]`` to logits ``[B, classes]``."""
        return self.scale * self.cosines(features)

    def cosines(self, features: Tensor) -> Tensor:
        """``[B, D]`` to cosines ``[B, classes]``, before scaling."""
        unit = normalize(features, dim=1)
        return torch.cat([linear(unit, normalize(block, dim=1)) for block in self.blocks], dim=1)

    def _centres(self, units: Tensor, seed: int) -> Tensor:
        """Return the normalised mean (UCIR)."""
        return normalize(units.mean(0, keepdim=True), dim=1)


class LinearClassifier(Classifier):
    """An ordinary linear layer: ``z_c = <f, w_c> + b_c``."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.biases = nn.ParameterList()

    def grow(self, classes: int) -> None:
        """Add a block of ``classes`` classes, drawn like torch's linear layer."""
        super().grow(classes)
        self.biases.append(self._drawn(classes))

    def forward(self, features: Tensor) -> Tensor:
        """``[B, D]`` to logits ``[B, classes]``."""
        pairs = zip(self.blocks, self.biases, strict=True)
        return torch.cat([linear(features, weight, bias) for weight, bias in pairs], dim=1)


class BiasClassifier(LinearClassifier):
    """A linear layer with BiC's correction of the newest block: ``beta (<f, w_c> + b_c) + gamma``.

    BiC learns beta and gamma last. Growing resets them, so unlike in the other classifiers the
    logits of the formerly newest block change. A teacher is an earlier copy that keeps its own.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.beta = nn.Parameter(torch.ones(()))
        self.gamma = nn.Parameter(torch.zeros(()))

    def grow(self, classes: int) -> None:
        """Add a block of ``classes`` classes and reset the correction to none: 1 and 0."""
        super().grow(classes)
        nn.init.ones_(self.beta)
        nn.init.zeros_(self.gamma)

    def forward(self, features: Tensor) -> Tensor:
        """``[B, D]`` to logits ``[B, classes]``."""
        logits = super().forward(features)
        new = self.sizes[-1]
        return torch.cat([logits[:, :-new], logits[:, -new:] * self.beta + self.gamma], dim=1)


class ProxyClassifier(Classifier):
    r"""PODNet's local similarity classifier: each class is near one of several proxies.

    With unit vectors f^ and w^, the similarity to proxy k of class c is
    ``s_ck = -|f^ - w^_ck|^2 = 2 <f^, w^_ck> - 2``, and

    .. math:: z_c = \eta \sum_k \mathrm{softmax}_k(s_{ck}) \, s_{ck}

    A block is ``[classes * proxies, D]``, with the proxies of a class one after another, and is
    drawn from N(0, 1/D). The scale eta is learned.
    """

    def __init__(self, width: int, proxies: int = 10) -> None:
        super().__init__(width)
        if proxies < 1:
            raise ValueError(f"A class can't have {proxies} proxies, it needs at least one.")
        self.proxies = proxies
        self.eta = nn.Parameter(torch.ones(()))

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

        A class with fewer distinct images than proxies repeats them, with noise of about a
        hundredth of their length, since equal proxies would stay equal.
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

    # Several threads would add their sums in the order in which they finish: other rounding.
    with threadpool_limits(1):
        found = KMeans(clusters, n_init=_STARTS, random_state=seed).fit(points)
    return np.asarray(found.cluster_centers_)


HEADS: dict[Head, type[Classifier]] = {
    "cosine": CosineClassifier,
    "linear": LinearClassifier,
    "bias": BiasClassifier,
    "proxies": ProxyClassifier,
}
