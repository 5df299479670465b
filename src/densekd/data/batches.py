"""Batches of images: shuffled, augmented, reproducible by seed, and divided among ranks."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from densekd.data.augment import Augment
from densekd.data.dataset import FileImages, Images, Split
from densekd.data.decode import CropDataset, UnreadableImage
from densekd.seeds import Seeds


class Blend(NamedTuple):
    """The images that mixup added to a batch."""

    labels: Tensor  # int64 [B], of the added images
    share: float  # the weight of the batch's own images, from 0 to 1


class Batch(NamedTuple):
    """Images ready for a network, and their labels."""

    images: Tensor  # float [B, 3, H, W]
    labels: Tensor  # int64 [B]
    blend: Blend | None = None


@dataclass(frozen=True)
class RankShare:
    """The part of each batch for this process: ``rank`` of ``world``."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"There is no rank {self.rank} among {self.world} processes.")

    def of(self, positions: Tensor) -> Tensor:
        """Return this process's part of a batch."""
        return positions.tensor_split(self.world)[self.rank]


class Batches:
    """The batches of a split, in an order that depends on seed and epoch alone.

    So training can resume at any epoch. An epoch has ``ceil(n / size)`` batches of nearly equal
    size: a tiny last batch would disturb batch normalisation.

    Images in memory are moved to the device of ``augment``. Images in files are cropped and flipped
    at random when they are decoded, and ``augment`` does the rest.
    """

    def __init__(
        self,
        data: Split,
        size: int,  # the most images in a batch over all ranks; more only if a rank would get none
        augment: Augment,
        seeds: Seeds,
        share: RankShare = RankShare(),  # noqa: B008 - immutable
        *,
        workers: int = 0,  # processes that decode files
    ) -> None:
        if size < share.world or len(data) < share.world:
            raise ValueError(
                f"{share.world} ranks can't share {len(data)} images in batches of {size}."
            )
        self._reader = _Reader(data.images, data.labels, augment, workers)
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
        parts = torch.arange(len(order)).tensor_split(len(self))
        shares = [self._share.of(part) for part in parts]
        batches = self._reader.augmented(order, shares[skip:], seeds.number("augment"))
        alpha = self._reader.augment.mixup
        return blended(batches, alpha, seeds.at("mixup"), skip) if alpha else batches

    def endless(self, *number: int | str, skip: int = 0) -> Iterator[Batch]:
        """Yield batches without end, epoch after epoch, to be paired with epoch ``number``."""
        whole, part = divmod(skip, len(self))
        yield from self.epoch(*number, whole, skip=part)
        for k in itertools.count(whole + 1):
            yield from self.epoch(*number, k)


def pairs(
    new: Batches, exemplars: Batches, *number: int | str, skip: int = 0
) -> Iterator[tuple[Batch, Batch]]:
    """Pair each batch of new images with one of exemplars, for one epoch of the stream split."""
    return zip(new.epoch(*number, skip=skip), exemplars.endless(*number, skip=skip), strict=False)


def in_order(data: Split, size: int, augment: Augment, *, workers: int = 0) -> Iterator[Batch]:
    """Yield all images in order, without augmentation, for testing and for features."""
    return _Reader(data.images, data.labels, augment, workers).plain(size)


def blended(
    batches: Iterable[Batch], alpha: float, seeds: Seeds, skipped: int = 0
) -> Iterator[Batch]:
    """Blend each batch with itself in another order by a share from Beta(alpha, alpha): mixup.

    The seeds draw for each batch by itself; ``skipped`` batches of the epoch were left out before.
    """
    for number, batch in enumerate(batches, skipped):
        draw = np.random.default_rng(seeds.at(number).number("augment"))
        share = float(draw.beta(alpha, alpha))
        order = torch.from_numpy(draw.permutation(len(batch.labels))).to(batch.labels.device)
        images = share * batch.images + (1 - share) * batch.images[order]
        yield Batch(images, batch.labels, Blend(batch.labels[order], share))


class _Reader:
    """Fetches batches by index, from memory or from files."""

    def __init__(self, images: Images, labels: Tensor, augment: Augment, workers: int) -> None:
        self.device = augment.get_buffer("scale").device
        self.labels = labels.to(self.device)
        self.augment = augment
        if isinstance(images, FileImages):
            self.pixels = None
            self._plan: list[list[tuple[int, int | None]]] = []
            self._epochs_begun = 0
            self._loader = DataLoader(
                CropDataset(images),
                batch_sampler=self._plan,
                num_workers=workers,
                persistent_workers=workers > 0,  # not restarted for every epoch
                pin_memory=self.device.type == "cuda",
            )
        else:
            self.pixels = images.pixels.to(self.device)

    def augmented(self, order: Tensor, parts: list[Tensor], seed: int) -> Iterator[Batch]:
        """Yield the images at ``order[part]`` for each part, augmented by ``seed``."""
        # Drawn at once and by every rank, so that the number of ranks changes nothing.
        draws = self.augment.draw(len(order), torch.Generator().manual_seed(seed)).to(self.device)
        rows = [slice(int(part[0]), int(part[-1]) + 1) for part in parts]
        in_files = self.pixels is None
        augment = self.augment.decoded if in_files else self.augment
        order = order if in_files else order.to(self.device)
        read = self._read([order[part] for part in rows], seed)
        for part, (pixels, labels) in zip(rows, read, strict=True):
            yield Batch(augment(pixels, draws.take(part)), labels)

    def plain(self, size: int) -> Iterator[Batch]:
        """Yield all images in their order, ``size`` at a time, without augmentation."""
        if len(self.labels):
            for pixels, labels in self._read(torch.arange(len(self.labels)).split(size), None):
                yield Batch(self.augment.normalise(pixels), labels)

    def _read(self, parts: Sequence[Tensor], seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pixels and labels of each part's images; files are cropped by ``seed``."""
        if self.pixels is not None:
            for part in parts:
                index = part.to(self.device)
                yield self.pixels[index], self.labels[index]
            return
        self._plan[:] = [[(i, seed) for i in part.tolist()] for part in parts]
        self._epochs_begun += 1
        turn = self._epochs_begun
        for part, pixels in zip(parts, _without_trace(self._loader), strict=True):
            yield pixels.to(self.device, non_blocking=True), self.labels[part.to(self.device)]
            if self._epochs_begun != turn:
                # The workers are shared: the next images would be those of the other epoch.
                raise RuntimeError("Another epoch of these Batches began before this one ended.")


def _without_trace(loader: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the loader's batches, and remove a worker's stack trace from an error's message."""
    try:
        yield from loader
    except UnreadableImage as error:
        raise UnreadableImage(str(error).strip().rpartition("UnreadableImage: ")[2]) from None
