"""Data sets: images, labels and class names, for training and for testing."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from densekd.data.file_lists import FileContents, FolderFiles, all_of, ends_of, join_files

Channels = tuple[float, float, float]
# Called with the number of files, images or bytes so far, and their total.
OnProgress = Callable[[int, int], None]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class PixelImages:
    """Images in memory."""

    pixels: Tensor  # uint8 [n, 3, H, W]; grey images too, so that other code handles one format

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] != 3:
            given = f"{self.pixels.dtype} of shape {list(self.pixels.shape)}"
            raise ValueError(f"Pixels must be uint8 of shape [n, 3, H, W], not {given}.")

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, index: Tensor) -> "PixelImages":
        """Return the images at ``index``, positions or a mask, copied."""
        return PixelImages(self.pixels[index])

    def state_bytes(self) -> int:
        """Return how many bytes `state` takes."""
        return self.pixels.nbytes

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `images_from_state` restores the images from."""
        return {"pixels": self.pixels}


@dataclass(frozen=True)
class FileImages:
    """Image files, each decoded when it is needed."""

    files: Sequence[Path | bytes]  # paths, or the files' contents; see `densekd.data.file_lists`
    size: int  # the height and width of the decoded images

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor) -> "FileImages":
        """Return the images at ``index``, positions or a mask."""
        return FileImages(all_of(self.files).take(index), self.size)

    def state_bytes(self) -> int:
        """Return how many bytes the contents of all files take, without reading them."""
        return sum(_size(files, place) for files, place in _places(self))

    def state(self) -> dict[str, Tensor]:
        """Return the contents of all files, one after the other, with their lengths."""
        buffer = bytearray()
        lengths = []
        for file in self.files:
            content = file if isinstance(file, bytes) else file.read_bytes()
            lengths.append(len(content))
            buffer += content
        return {
            "bytes": torch.from_numpy(np.frombuffer(buffer, np.uint8)),
            "lengths": torch.tensor(lengths, dtype=torch.int64),
            "size": torch.tensor(self.size),
        }


Images = PixelImages | FileImages


def image_shape(images: Images) -> tuple[int, int]:
    """The height and width of images."""
    if isinstance(images, FileImages):
        return images.size, images.size
    height, width = images.pixels.shape[2:]
    return height, width


def join_images(parts: Sequence[Images]) -> Images:
    """Join images in the order of ``parts``; raise ValueError if they differ in kind or size."""
    pixels = [part.pixels for part in parts if isinstance(part, PixelImages)]
    files = [part for part in parts if isinstance(part, FileImages)]
    shapes = {part.shape[1:] for part in pixels} | {(part.size,) for part in files}
    if len(shapes) != 1:
        raise ValueError("Images in memory and in files, or of different sizes, can't be joined.")
    if pixels:
        return PixelImages(torch.cat(pixels))
    return FileImages(join_files([part.files for part in files]), files[0].size)


def images_from_state(state: Mapping[str, Tensor]) -> Images:
    """Restore images from what their ``state()`` returned."""
    if "pixels" in state:
        return PixelImages(state["pixels"])
    contents = FileContents(state["bytes"].numpy(), ends_of(state["lengths"].numpy()))
    return FileImages(contents, int(state["size"]))


@dataclass(frozen=True)
class Split:
    """Images with their labels."""

    images: Images
    labels: Tensor  # int64 [n]

    def __post_init__(self) -> None:
        if self.labels.shape != (len(self.images),):
            raise ValueError(
                f"{len(self.images)} images, but labels of shape {list(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Tensor) -> "Split":
        """Return the images and labels at ``index``, positions or a mask."""
        return Split(self.images.take(index), self.labels[index])


def join_splits(parts: Sequence[Split]) -> Split:
    """Join the images and labels of all ``parts`` in that order."""
    labels = torch.cat([part.labels for part in parts])
    return Split(join_images([part.images for part in parts]), labels)


def fingerprint(split: Split) -> str:
    """Hash the labels with the pixels, or with the files' names and sizes; see `_described`.

    A different hash tells that a folder's files have changed.
    """
    digest = hashlib.sha256(split.labels.numpy().tobytes())
    if isinstance(split.images, PixelImages):
        digest.update(split.images.pixels.contiguous().numpy().tobytes())
        return digest.hexdigest()
    for files, place in _places(split.images):
        digest.update(_described(files, place))
    return digest.hexdigest()


def _places(images: FileImages) -> Iterator[tuple[Sequence[Path | bytes], int]]:
    """Yield the list that each file is in, and the file's place there."""
    chosen = all_of(images.files)
    for which, place in zip(chosen.which.tolist(), chosen.places.tolist(), strict=True):
        yield chosen.lists[which], place


def _described(files: Sequence[Path | bytes], place: int) -> bytes:
    """A file's CRC-32 or content if it is given by content, else its name and size."""
    if isinstance(files, FileContents) and files.checksums is not None:
        return int(files.checksums[place]).to_bytes(4, "little")  # without reading the images
    if isinstance(files, FolderFiles):  # no paths are made: there may be a million files
        name = files.name(place)
    else:
        file = files[place]
        if isinstance(file, bytes):
            return file
        name = file.name
    # A name might not be UTF-8.
    return f"{name} {_size(files, place)} ".encode(errors="surrogateescape")


def _size(files: Sequence[Path | bytes], place: int) -> int:
    """The number of bytes of a file."""
    if isinstance(files, FileContents):
        return int(files.ends[place + 1] - files.ends[place])
    if isinstance(files, FolderFiles):
        return os.stat(os.path.join(files.folder, files.name(place))).st_size
    file = files[place]
    return len(file) if isinstance(file, bytes) else file.stat().st_size


@dataclass(frozen=True)
class Dataset:
    """A classification data set; `densekd.as_dataset` converts other data to one.

    Example:
        >>> import densekd
        >>> dataset = densekd.load("digits")
        >>> len(dataset.classes), len(dataset.train), len(dataset.test)
        (10, 1347, 450)
    """

    name: str  # the source it was loaded from, such as cifar100
    classes: tuple[str, ...]  # their names; a label is an index into them
    train: Split
    test: Split
    mean: Channels  # of pixels scaled to 0 to 1
    std: Channels
    # Held out of the training images to choose settings.
    validation: Split | None = None

    def __post_init__(self) -> None:
        parts = {"training": self.train, "test": self.test, "validation": self.validation}
        for part, split in parts.items():
            labels = torch.empty(0) if split is None else split.labels
            wrong = labels[(labels < 0) | (labels >= len(self.classes))]
            if len(wrong):
                raise ValueError(
                    f"{self.name}: {len(wrong)} {part} labels, such as {int(wrong[0])}, are not "
                    f"of the {len(self.classes)} classes."
                )
        if len(set(self.classes)) != len(self.classes):
            twice = next(c for c in self.classes if self.classes.count(c) > 1)
            raise ValueError(f"{self.name}: two classes are called {twice!r}.")


def rgb_planes(images: Tensor, *, channels_first: bool = False) -> Tensor:
    """Bring images ``[n, H, W]``, ``[n, H, W, C]`` or ``[n, C, H, W]`` to ``[n, 3, H, W]``.

    If the shape fits both of the latter, ``channels_first`` decides.
    """
    if images.ndim == 3:
        images, channels_first = images[:, None], True
    first, last = (images.ndim == 4 and images.shape[axis] in (1, 3) for axis in (1, 3))
    if not first and not last:
        raise ValueError(
            f"Images of shape {list(images.shape)} are not [n, H, W], [n, H, W, C] or [n, C, H, W] "
            "with C of 1 or 3."
        )
    if last and not (first and channels_first):
        images = images.permute(0, 3, 1, 2)
    return images.expand(-1, 3, -1, -1).contiguous()


def image_statistics(images: Images) -> tuple[Channels, Channels]:
    """Return each channel's mean and deviation; for files, which aren't read, ImageNet's."""
    if isinstance(images, FileImages):
        return IMAGENET_MEAN, IMAGENET_STD
    return channel_statistics(images.pixels.cpu())


def channel_statistics(pixels: Tensor) -> tuple[Channels, Channels]:
    """Return each channel's mean and deviation, of uint8 ``[n, 3, H, W]`` scaled to 0 to 1.

    A constant channel gets a deviation of 1, so that dividing by it is safe.
    """
    counts = torch.stack([torch.bincount(pixels[:, c].flatten(), minlength=256) for c in range(3)])
    shares = counts.double() / counts.sum(1, keepdim=True)
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares @ levels.square() - mean.square()).clamp(min=0).sqrt()
    std[counts.amax(1) == counts.sum(1)] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())
