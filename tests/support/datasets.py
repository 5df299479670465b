"""Small data sets whose pixels say which image they are."""

import torch

from densekd.data.dataset import Dataset, PixelImages, Split


def split(classes: int, per_class: int, size: int = 8) -> Split:
    """Return images of one colour each: channel 0 is the class, channel 1 the image's number."""
    labels = torch.arange(classes * per_class) % classes
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, size, size)
    pixels[:, 1] = (torch.arange(len(labels)) // classes).view(-1, 1, 1).to(torch.uint8)
    pixels[:, 2] = 0
    return Split(PixelImages(pixels), labels)


def dataset(classes: int = 10, per_class: int = 6, test: int = 3, size: int = 8) -> Dataset:
    """Return a data set of `split`s; channel 2 is 0 in training images and 255 in test images."""
    names = tuple(f"class {i}" for i in range(classes))
    train, held_out = split(classes, per_class, size), split(classes, test, size)
    assert isinstance(held_out.images, PixelImages)
    held_out.images.pixels[:, 2] = 255
    return Dataset("made", names, train, held_out, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
