"""What a model gets wrong: classes that it mixes up, and photos that may be in the wrong class."""

import io
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from densekd.data.dataset import PixelImages
from densekd.model.frozen import FrozenModel
from densekd.model.model import Model
from densekd.model.unknown import cross_scores


class Confusion(NamedTuple):
    """The test photos of a class that a model takes for another class."""

    label: str
    guess: str
    tested: int  # test photos of the class
    images: tuple[bytes, ...]  # those that are taken for the other, as JPEG


class Suspect(NamedTuple):
    """A photo that may be in the wrong class."""

    hash: bytes  # SHA-256 of its file
    label: str
    guess: str  # the class that it looks like
    image: bytes  # JPEG


def find_confusions(model: Model) -> list[Confusion]:
    """Which classes are taken for which on the test photos, the most frequent first."""
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
    """Photos that may be in the wrong class, the likeliest first.

    Each photo is classified by heads that were fitted without it. It is suspect if another class
    is likelier, and at least as likely as this class is on average for photos of its own
    (confident learning, Northcutt et al. 2021). Only photos whose image is kept are given, and
    none of a model without features.
    """
    if not isinstance(model, FrozenModel):
        return []
    used = model.labels >= 0
    features, labels = model.photos.features[used].float(), model.labels[used]
    crossed = cross_scores(features, labels, len(model.classes))
    shares = (crossed.logits / model.temperature).softmax(1)
    places, labels = used.nonzero().flatten()[crossed.places], labels[crossed.places]
    own = shares[torch.arange(len(labels)), labels]
    usual = torch.full((len(model.classes),), float(own.mean()))  # of classes without any score
    for rank in labels.unique():
        usual[rank] = own[labels == rank].mean()
    best, guesses = shares.max(1)
    suspect = model.photos.kept[places] & (guesses != labels) & (best >= usual[guesses])
    order = (best - own).masked_fill(~suspect, -1).argsort(descending=True)
    names, photos = model.classes, model.photos
    return [
        Suspect(
            bytes(photos.hashes[places[row]].tolist()),
            names[int(labels[row])],
            names[int(guesses[row])],
            photos.jpegs[int(places[row])],
        )
        for row in order[: min(most, int(suspect.sum()))].tolist()
    ]


def _tested(model: Model) -> tuple[Tensor, Tensor, Sequence[bytes]]:
    """Labels and predictions of the test photos, and the photos as JPEG."""
    if isinstance(model, FrozenModel):
        photos = model.photos
        places = (photos.test & (model.labels >= 0)).nonzero().flatten()
        guesses = model.tested_head.scores(photos.features[places].float()).argmax(1)
        return model.labels[places], guesses, [photos.jpegs[place] for place in places.tolist()]
    test = model.test_images()
    assert isinstance(test.images, PixelImages)
    pixels = test.images.pixels
    return test.labels, model.scores(pixels).argmax(1), [_jpeg(each) for each in pixels]


def _jpeg(pixels: Tensor) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(out, "JPEG", quality=92, subsampling=0)
    return out.getvalue()
