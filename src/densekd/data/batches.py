"""Batches of images: shuffled, augmented, reproducible by seed, and divided among ranks."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_convert

from densekd.allocator import keep_freed_memory
from densekd.data.augment import Augment
from densekd.data.crops import CropDataset
from densekd.data.dataset import Images, PixelImages, Split
from densekd.data.decode import UnreadableImage, available_processors
from densekd.seeds import Seeds

_Item = TypeVar("_Item")

_IMAGES_A_WORKER = 512
_PREFETCHED = 2  # batches that a worker makes in advance
_BUFFERS = _PREFETCHED + 1  # these batches, and the one in use


class Blend(NamedTuple):
    """The images that mixup blended into a batch."""

    labels: Tensor  # int64 [B], of the blended-in images
    share: float  # the weight of the batch's own images, from 0 to 1


class Batch(NamedTuple):
    """Images ready for a network, and their labels."""

    images: Tensor  # float [B, 3, H, W]
    labels: Tensor  # int64 [B]
    blend: Blend | None = None


@dataclass(frozen=True)
class RankShare:
    """The part of each batch for this process, number ``rank`` of ``world``."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"There is no rank {self.rank} among {self.world} processes.")

    def of(self, positions: Tensor) -> Tensor:
        """Return this process's part of a batch."""
        return positions.tensor_split(self.world)[self.rank]


class Batches:
    """The batches of a split, in an order that depends only on the seed and the epoch.

    So training can resume at any epoch. An epoch has ``ceil(n / size)`` batches of nearly equal
    size, since a tiny last batch would disturb batch normalisation.

    Images in memory are moved to the device of ``augment``. Images in files are decoded anew in
    each epoch, by other processes. Both are augmented in the same way.
    """

    def __init__(
        self,
        data: Split,
        size: int,  # images in a batch of all ranks, at most, unless a rank would get none
        augment: Augment,
        seeds: Seeds,
        share: RankShare = RankShare(),  # noqa: B008 - immutable
        *,
        workers: int | None = None,  # processes that decode files; see `default_workers`
    ) -> None:
        if size < share.world or len(data) < share.world:
            raise ValueError(
                f"{share.world} ranks can't share {len(data)} images in batches of {size}."
            )
        self._reader = _Reader(data, augment, workers)
        self._size = size
        self._seeds = seeds
        self._share = share

    def __len__(self) -> int:
        images = len(self._reader.labels)
        return min(math.ceil(images / self._size), images // self._share.world)

    def epoch(self, *number: int | str, skip: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of each batch of epoch ``number``, without the first ``skip``."""
        seeds = self._seeds.at(*number)
        order = torch.randperm(len(self._reader.labels), generator=seeds.generator("batches"))
        parts, seed = torch.arange(len(order)).tensor_split(len(self)), seeds.number("augment")
        alpha = self._reader.augment.mixup
        if not alpha:
            shares = [self._share.of(part) for part in parts]
            return self._reader.augmented(order, shares[skip:], seed)
        mixes = [
            Mixup.draw(len(part), self._share, alpha, seeds.at("mixup").at(number))
            for number, part in enumerate(parts)
        ][skip:]
        needed = [part[mix.needed] for part, mix in zip(parts[skip:], mixes, strict=True)]
        read = self._reader.augmented(order, needed, seed)
        return (mix.blend(batch) for mix, batch in zip(mixes, read, strict=True))

    def endless(self, *number: int | str, skip: int = 0) -> Iterator[Batch]:
        """Yield batches without end, epoch after epoch, to pair with those of epoch ``number``."""
        whole, part = divmod(skip, len(self))
        yield from self.epoch(*number, whole, skip=part)
        for k in itertools.count(whole + 1):
            yield from self.epoch(*number, k)


def pairs(
    new: Batches, exemplars: Batches, *number: int | str, skip: int = 0
) -> Iterator[tuple[Batch, Batch]]:
    """Pair each batch of new images with one of exemplars, for an epoch of ``split`` streams."""
    return zip(new.epoch(*number, skip=skip), exemplars.endless(*number, skip=skip), strict=False)


def in_order(
    data: Split, size: int, augment: Augment, *, workers: int | None = None
) -> Iterator[Batch]:
    """Yield all images in order, without augmentation, for testing and for features."""
    return _Reader(data, augment, workers).plain(size)


class Mixup(NamedTuple):
    """How a rank blends its part of a batch with shuffled images of the whole batch."""

    needed: Tensor  # int64, which images of the batch the rank must read, in order
    own: Tensor  # int64 [B], its part of the batch, as indices into ``needed``
    others: Tensor  # int64 [B], the images to blend in, as indices into ``needed``
    share: float  # the weight of its own images

    @classmethod
    def draw(cls, size: int, rank: RankShare, alpha: float, seeds: Seeds) -> "Mixup":
        """Draw for a whole batch of ``size``, so that the number of ranks doesn't matter.

        The share is drawn from Beta(alpha, alpha).
        """
        generator = np.random.default_rng(seeds.number("augment"))
        share = float(generator.beta(alpha, alpha))
        others = rank.of(torch.from_numpy(generator.permutation(size)))
        own = rank.of(torch.arange(size))
        needed = torch.cat([own, others]).unique()
        own, others = torch.searchsorted(needed, own), torch.searchsorted(needed, others)
        return cls(needed, own, others, share)

    def blend(self, read: Batch) -> Batch:
        """Blend the rank's part from ``read``, the ``needed`` images."""
        own, others = (index.to(read.labels.device) for index in (self.own, self.others))
        images = self.share * read.images[own] + (1 - self.share) * read.images[others]
        return Batch(images, read.labels[own], Blend(read.labels[others], self.share))


def default_workers(images: Images, ranks: int = 1) -> int:
    """The default number of processes that decode images, for each rank; 0 for images in memory.

    The ``ranks`` on this machine share its processors. With few images there are fewer processes: a
    process takes longer to start than to decode a few hundred images.
    """
    if isinstance(images, PixelImages):
        return 0
    return min(available_processors() // ranks, len(images) // _IMAGES_A_WORKER)


class _Plan:
    """The keys of the images of each batch; makes a batch's keys when they are needed."""

    parts: Sequence[Tensor] = ()
    seed: int | None = None

    def __iter__(self) -> Iterator[list[tuple[int, int | None]]]:
        return ([(i, self.seed) for i in part.tolist()] for part in self.parts)


class _Reader:
    """Fetches batches by index, from memory or from files."""

    def __init__(self, data: Split, augment: Augment, workers: int | None) -> None:
        self.device = augment.get_buffer("scale").device
        self.labels = data.labels.to(self.device)
        self.augment = augment
        images, resized = data.images, augment.crop == "resized"
        self.pixels = images.pixels.to(self.device) if isinstance(images, PixelImages) else None
        if self.pixels is None or resized:
            keep_freed_memory()  # such images are usually large
            count = default_workers(images) if workers is None else workers
            self._plan = _Plan()
            self._epochs_begun = 0
            self._loader = DataLoader(
                CropDataset(images, _BUFFERS),
                batch_sampler=self._plan,
                collate_fn=default_convert,  # `CropDataset` makes whole batches
                num_workers=count,
                prefetch_factor=_PREFETCHED if count else None,
                persistent_workers=count > 0,  # not restarted for every epoch
                pin_memory=self.device.type == "cuda",
            )

    def augmented(self, order: Tensor, parts: list[Tensor], seed: int) -> Iterator[Batch]:
        """Yield the images at ``order[part]`` for each part, augmented by ``seed``."""
        # Every rank draws for all images at once, so that the number of ranks doesn't matter.
        draws = self.augment.draw(len(order), torch.Generator().manual_seed(seed)).to(self.device)
        rows = [_as_slice(part) for part in parts]
        order = order if self.pixels is None else order.to(self.device)
        cropped_by = seed if self.augment.crop == "resized" else None
        read = self._read([order[part] for part in rows], cropped_by)
        for part, (pixels, labels) in zip(rows, read, strict=True):
            yield Batch(self.augment(pixels, draws.take(part)), labels)

    def plain(self, size: int) -> Iterator[Batch]:
        """Yield all images in their order, ``size`` at a time, without augmentation."""
        if len(self.labels):
            for pixels, labels in self._read(torch.arange(len(self.labels)).split(size), None):
                yield Batch(self.augment.normalise(pixels), labels)

    def _read(self, parts: Sequence[Tensor], seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pixels and labels of each part's images: random crops by ``seed``, or test crops.

        On an accelerator, the next images are transferred while these are used.
        """
        if self.pixels is not None and seed is None:
            pixels, indices = self.pixels, (part.to(self.device) for part in parts)
            return ((pixels[index], self.labels[index]) for index in indices)
        loaded = self._loaded(parts, seed)
        return loaded if self.device.type == "cpu" else one_ahead(loaded)

    def _loaded(self, parts: Sequence[Tensor], seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        self._plan.parts, self._plan.seed = parts, seed
        self._epochs_begun += 1
        turn = self._epochs_begun
        for part, pixels in zip(parts, _without_trace(self._loader), strict=True):
            # Workers reuse their memory, so its transfer must not lag; pinned memory is a copy.
            lags = self.device.type == "cuda"
            yield pixels.to(self.device, non_blocking=lags), self.labels[part.to(self.device)]
            if self._epochs_begun != turn:
                # Epochs share the workers: the next images would be those of the other epoch.
                raise RuntimeError("Another epoch of these Batches began before this one ended.")


def one_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the same items, but fetch the next one before yielding each."""
    for waiting in items:
        for item in items:
            yield waiting
            waiting = item
        yield waiting


def _without_trace(loader: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the loader's batches, and remove a worker's stack trace from an error's message."""
    try:
        yield from loader
    except UnreadableImage as error:
        raise UnreadableImage(str(error).strip().rpartition("UnreadableImage: ")[2]) from None


def _as_slice(index: Tensor) -> Tensor | slice:
    """Turn ascending indices without gaps into a slice, which copies nothing."""
    first, end = int(index[0]), int(index[-1]) + 1
    return slice(first, end) if end - first == len(index) else index
