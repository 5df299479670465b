"""The baselines' losses in float64 NumPy, image by image, written from the equations.

Imports nothing of the package: what it says is independent of what the package does.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def finite_differences(loss: Callable[[Array], float], x: Array, step: float = 1e-6) -> Array:
    """The gradient of a loss by central differences, one entry after the other."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (loss(up) - loss(down)) / (2 * step)
    return gradient


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def icarl(logits: Array, targets: Array) -> Array:
    """Binary cross-entropy of every output: [B, C]."""
    g = sigmoid(logits)
    return np.asarray(-(targets * np.log(g) + (1 - targets) * np.log(1 - g)))


def icarl_targets(labels: Sequence[int], classes: int, teacher: Array) -> Array:
    """The labels as zeros and ones, but the teacher's sigmoids wherever it has an output."""
    targets = np.zeros((len(labels), classes))
    for image, label in enumerate(labels):
        targets[image, label] = 1
    targets[:, : teacher.shape[1]] = sigmoid(teacher)
    return targets


def nca_released(scores: Array, labels: Sequence[int], margin: float) -> float:
    """Step by step what PODNet's code does, margin and all."""
    losses = []
    for z, y in zip(scores, labels, strict=True):
        shifted = z - margin
        shifted = shifted - max(shifted)
        denominator = shifted.copy()
        denominator[y] = 0  # which was meant to take the positive out
        losses.append(-(shifted[y] - np.log(np.exp(denominator).sum())))
    return float(np.mean(losses))


def nca_paper(scores: Array, labels: Sequence[int], margin: float) -> float:
    """Margin on the positive only, which the denominator leaves out; never below 0."""
    losses = []
    for z, y in zip(scores, labels, strict=True):
        others = sum(np.exp(z[j]) for j in range(len(z)) if j != y)
        losses.append(max(0.0, -np.log(np.exp(z[y] - margin) / others)))
    return float(np.mean(losses))


def soft_cross_entropy(student: Array, teacher: Array, tau: float) -> float:
    losses = []
    for v, u in zip(student / tau, teacher / tau, strict=True):
        p, q = np.exp(u) / np.exp(u).sum(), np.exp(v) / np.exp(v).sum()
        losses.append(-sum(p * np.log(q)))
    return float(np.mean(losses))


def length(x: Array) -> float:
    return float(np.sqrt((x**2).sum()))


def less_forget(student: Array, teacher: Array) -> float:
    cosines = [f @ g / (length(f) * length(g)) for f, g in zip(student, teacher, strict=True)]
    return float(np.mean([1 - cosine for cosine in cosines]))


def pod_spatial(student: Sequence[Array], teacher: Sequence[Array]) -> float:
    def profile(image: Array) -> Array:
        channels, height, width = image.shape
        rows = [(image[c, h, :] ** 2).sum() for c in range(channels) for h in range(height)]
        columns = [(image[c, :, w] ** 2).sum() for c in range(channels) for w in range(width)]
        both = np.array(rows + columns)
        return np.asarray(both / length(both))

    layers = []
    for x, y in zip(student, teacher, strict=True):
        pairs = zip(x, y, strict=True)
        layers.append(np.mean([length(profile(a) - profile(b)) for a, b in pairs]))
    return float(np.mean(layers))


def channel_distance(
    student: Sequence[Array], teacher: Sequence[Array], importance: Sequence[Array]
) -> float:
    layers = []
    for x, y, weights in zip(student, teacher, importance, strict=True):
        terms = []
        for image, other in zip(x, y, strict=True):
            for a, b, weight in zip(image**2, other**2, weights, strict=True):
                terms.append(weight * length(a / length(a) - b / length(b)))
        layers.append(np.mean(terms))
    return float(np.mean(layers))


def channel_importance(gradients: Sequence[Array]) -> list[Array]:
    """For each layer and channel, the squares of all its gradients."""
    return [np.array([(g[:, c] ** 2).sum() for c in range(g.shape[1])]) for g in gradients]


def margin_ranking(cosines: Array, labels: Sequence[int], old: int, margin: float, k: int) -> float:
    hinges = []
    for s, y in zip(cosines, labels, strict=True):
        if y < old:
            hinges += [max(0.0, margin - s[y] + other) for other in sorted(s[old:])[::-1][:k]]
    return float(np.mean(hinges)) if hinges else 0.0
