"""The photo files of an update: hash them, split them, and choose those that fit a budget."""

import logging
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from densekd.data.dataset import OnProgress
from densekd.data.decode import in_threads
from densekd.data.folder import FolderTable
from densekd.model.images import train_test_masks

_SEED = 0  # draws the test photos

logger = logging.getLogger(__name__)


class PhotoFile(NamedTuple):
    """A photo to be learned."""

    file: Path
    name: str  # its class
    part: str  # the part of the folder that it is in, such as ``train``
    test: bool  # whether it is held out for testing
    hash: bytes  # SHA-256 of the file


def hash_photos(table: FolderTable, on_progress: OnProgress) -> list[PhotoFile]:
    """Hash the files, and split them into training and test photos."""
    names, parts = table.class_of_each, table.part_of_each
    hashes = in_threads(_hash, table.paths, on_progress)
    train, test = train_test_masks(names, parts, _SEED)
    rows = zip(table.paths, names, parts, test.tolist(), hashes, strict=True)
    used = (train | test).tolist()
    return [PhotoFile(*row) for row, use in zip(rows, used, strict=True) if use]


def _hash(file: Path) -> bytes:
    try:
        return sha256(file.read_bytes()).digest()
    except OSError as error:  # the file is reported later, when its pixels are read
        return sha256(f"{file}: {error}".encode(errors="backslashreplace")).digest()


def without_copies(
    files: Sequence[PhotoFile], taught: set[tuple[str, bytes]]
) -> tuple[PhotoFile, ...]:
    """The photos that weren't taught yet in their class, each content once."""
    seen, new = set(taught), []
    for photo in files:
        if (photo.name, photo.hash) not in seen:
            seen.add((photo.name, photo.hash))
            new.append(photo)
    if len(new) < len(files):
        logger.warning(
            "%d photos are copies of others; each is learned once.", len(files) - len(new)
        )
    classes = Counter(hashed for _, hashed in seen)
    shared = [photo for photo in new if classes[photo.hash] > 1]
    if shared:
        logger.warning(
            "%d photos are in more than one class, such as %s; keep each in one.",
            *(len(shared), shared[0].file),
        )
    return tuple(new)


def trainable(files: Sequence[PhotoFile], known: Sequence[str]) -> list[PhotoFile]:
    """The photos; if a new class has only test photos, they become training photos."""
    learned = {photo.name for photo in files if not photo.test}.union(known)
    return [photo._replace(test=photo.test and photo.name in learned) for photo in files]


def photos_within(files: Sequence[PhotoFile], most: int) -> tuple[PhotoFile, ...]:
    """The first photos of each class, equally many while they last.

    These are at most ``most`` in all, but at least one of each class. Training and test photos are
    chosen in proportion.
    """
    counts = Counter((photo.name, photo.test) for photo in files)
    seen, shares = Counter[tuple[str, bool]](), []
    for photo in files:
        kind = photo.name, photo.test
        # A class's first photo is always one to train on.
        shares.append((seen[kind] + photo.test) / counts[kind])
        seen[kind] += 1
    own, ranks = Counter[str](), [0] * len(files)
    for place in sorted(range(len(files)), key=shares.__getitem__):
        ranks[place] = own[files[place].name]
        own[files[place].name] += 1
    totals = accumulate(count for _, count in sorted(Counter(ranks).items()))
    each = max(1, sum(total <= most for total in totals))
    return tuple(photo for photo, rank in zip(files, ranks, strict=True) if rank < each)
