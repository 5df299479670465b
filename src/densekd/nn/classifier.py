"""Classifiers that grow: one block of weights per task.

Each block is multiplied by itself. A product with one larger matrix may round the old classes'
logits differently, and then growing would change them.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize


class Classifier(nn.Module):
    """What the classifiers share: a block of weights ``[classes, D]`` for each task.

    Args:
        width: D, the dimension of the features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"A classifier of {width} features is not possible.")
        self.width = width
        self.blocks = nn.ParameterList()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task."""
        return tuple(len(block) for block in self.blocks)

    @property
    def classes(self) -> int:
        """The number of classes so far."""
        return sum(self.sizes)

    def grow(self, classes: int) -> None:
        """Add a block of ``classes`` classes, drawn from U(-1/sqrt(D), 1/sqrt(D))."""
        if classes < 1:
            raise ValueError(f"Can't grow by {classes} classes.")
        self.blocks.append(self._drawn(classes, self.width))

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
        """``[B, D]`` to cosines ``[B, classes]``, before they are scaled."""
        unit = normalize(features, dim=1)
        return torch.cat([linear(unit, normalize(block, dim=1)) for block in self.blocks], dim=1)


class LinearClassifier(Classifier):
    """An ordinary linear layer: ``z_c = <f, w_c> + b_c``."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.biases = nn.ParameterList()

    def grow(self, classes: int) -> None:
        """Add a block of ``classes`` classes, drawn as torch draws a linear layer."""
        super().grow(classes)
        self.biases.append(self._drawn(classes))

    def forward(self, features: Tensor) -> Tensor:
        """``[B, D]`` to logits ``[B, classes]``."""
        pairs = zip(self.blocks, self.biases, strict=True)
        return torch.cat([linear(features, weight, bias) for weight, bias in pairs], dim=1)
