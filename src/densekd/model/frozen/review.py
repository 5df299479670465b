"""Review a model: find classes that it confuses, and photos that may be in the wrong class."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from densekd.data.dataset import PixelImages
from densekd.model.frozen.head import fit_head
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photos import as_jpeg
from densekd.model.model import Model
from densekd.seeds import Seeds

_FOLDS = 10


class Confusion(NamedTuple):
    """The test photos of a class for which a model predicts another class."""

    label: str
    guess: str
    tested: int  # test photos of the class
    images: tuple[bytes, ...]  # the misclassified ones, as JPEG


class Suspect(NamedTuple):
    """A photo that may be in the wrong class."""

    hash: bytes  # SHA-256 of its file
    label: str
    guess: str  # the class that it looks like
    image: bytes  # JPEG


def find_confusions(model: Model) -> list[Confusion]:
    """Find the classes that the model confuses on the test photos, the most frequent first."""
    labels, guesses, images = _tested(model)
    counts = torch.bincount(labels, minlength=len(model.classes)).tolist()
    found = defaultdict[tuple[int, int], list[bytes]](list)
    for label, guess, image in zip(labels.tolist(), guesses.tolist(), images, strict=True):
        if label != guess:
            found[label, guess].append(image)
    names = model.classes
    confusions = [
        Confusion(names[label], names[guess], counts[label], tuple(own))
        for (label, guess), own in found.items()
    ]
    return sorted(confusions, key=lambda each: len(each.images), reverse=True)


def find_suspects(model: Model, most: int) -> list[Suspect]:
    """Find photos that may be in the wrong class, the likeliest first.

    Each photo is classified by a head that was fitted without it. It is suspect if another class
    gets a higher probability than its own, and at least the mean of what that class gets for its
    own photos (confident learning, Northcutt et al. 2021). Only photos whose image is kept are
    given, and none for a model without features.
    """
    if not isinstance(model, FrozenModel):
        return []
    shares = _cross_validated(model)
    rows = torch.arange(len(shares))
    used, labels = model.labels >= 0, model.labels.clamp(min=0)
    own = shares[rows, labels]
    usual = torch.stack([own[used & (labels == rank)].mean() for rank in range(shares.shape[1])])
    best, guesses = shares.max(1)
    suspect = used & model.photos.kept & (guesses != labels) & (best >= usual[guesses])
    order = (best - own).masked_fill(~suspect, -1).argsort(descending=True)
    names, photos = model.classes, model.photos
    return [
        Suspect(
            bytes(photos.hashes[place].tolist()),
            names[int(labels[place])],
            names[int(guesses[place])],
            photos.jpegs[place],
        )
        for place in order[: min(most, int(suspect.sum()))].tolist()
    ]


def _tested(model: Model) -> tuple[Tensor, Tensor, Sequence[bytes]]:
    """The labels and predictions of the test photos, and the photos as JPEG."""
    if isinstance(model, FrozenModel):
        photos = model.photos
        places = model.tested.nonzero().flatten()
        guesses = model.evaluation_head.scores(photos.features[places].float()).argmax(1)
        return model.labels[places], guesses, [photos.jpegs[place] for place in places.tolist()]
    test = model.stored_images(tested=True)
    assert isinstance(test.images, PixelImages)
    pixels = test.images.pixels
    images = [as_jpeg(Image.fromarray(each.numpy())) for each in pixels.permute(0, 2, 3, 1)]
    return test.labels, model.scores(pixels).argmax(1), images


def _cross_validated(model: FrozenModel) -> Tensor:
    """Probabilities ``[n, classes]`` of each photo, by heads that were fitted without it."""
    features, labels, classes = model.photos.features.float(), model.labels, len(model.classes)
    fold = torch.full_like(labels, -1)
    for rank, name in enumerate(model.classes):
        own = (labels == rank).nonzero().flatten()
        # A class's only photo is in every fit, since a head needs photos of all classes.
        if len(own) > 1:
            order = torch.randperm(len(own), generator=Seeds(0).at(name).generator("split"))
            fold[own[order]] = torch.arange(len(own)) % _FOLDS
    scores = model.head.scores(features)
    for number in fold[fold >= 0].unique().tolist():
        rest, out = (labels >= 0) & (fold != number), fold == number
        scores[out] = fit_head(features[rest], labels[rest], classes).scores(features[out])
    return (scores / model.temperature).softmax(1)
