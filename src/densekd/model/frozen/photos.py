"""The photos that a model was taught: their features, and the images of some of them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from densekd.data.decode import open_rgb, shorter_side, shrink, width_and_height
from densekd.files import DamagedFile
from densekd.training.checkpoint import State, load_state, save_state

_HASH = 32  # bytes of a SHA-256
_KINDS = {
    "hashes": torch.uint8,
    "features": torch.float16,
    "test": torch.bool,
    "jpegs": torch.uint8,
    "sizes": torch.int64,
}
_QUALITY = 92  # of JPEG: a network sees no difference
_MOST_PIXELS = 8_000_000  # of a kept image: twice as many as the largest network takes
_LONGEST = 2  # longest side of a kept image, in shorter sides; the rest of a panorama is cut off


@dataclass(frozen=True)
class Photos:
    """Photos in the order in which they were taught."""

    hashes: Tensor  # SHA-256 of each file, uint8 [n, 32]
    features: Tensor  # half precision [n, D], of length 1
    test: Tensor  # whether each is held out for testing, bool [n]
    jpegs: tuple[bytes, ...]  # the image of each, made smaller; empty if it isn't kept

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def kept(self) -> Tensor:
        """Whether each photo's image is kept, bool ``[n]``."""
        return torch.tensor([bool(jpeg) for jpeg in self.jpegs], dtype=torch.bool)

    def take(self, places: Tensor) -> "Photos":
        """The photos at these places."""
        jpegs = tuple(self.jpegs[place] for place in places.tolist())
        return Photos(self.hashes[places], self.features[places], self.test[places], jpegs)

    @property
    def erased(self) -> Tensor:
        """Whether each photo was erased, so that only its place is left, bool ``[n]``."""
        return ~self.hashes.bool().any(1)

    def erase(self, gone: Tensor) -> "Photos":
        """The same photos, but of those that are ``gone`` only their places."""
        jpegs = tuple(b"" if out else x for x, out in zip(self.jpegs, gone.tolist(), strict=True))
        rows = gone[:, None]
        hashes, features = self.hashes.masked_fill(rows, 0), self.features.masked_fill(rows, 0)
        return Photos(hashes, features, self.test & ~gone, jpegs)

    def save(self, path: Path) -> None:
        """Save them; `load_photos` loads them."""
        tensors = {
            "hashes": self.hashes,
            "features": self.features,
            "test": self.test,
            "jpegs": torch.from_numpy(np.frombuffer(b"".join(self.jpegs), np.uint8).copy()),
            "sizes": torch.tensor([len(jpeg) for jpeg in self.jpegs], dtype=torch.int64),
        }
        save_state(path, State({}, tensors))


def load_photos(path: Path) -> Photos:
    """Load what `Photos.save` saved; raises `DamagedFile` if it isn't that."""
    tensors = load_state(path).tensors
    if {name: tensor.dtype for name, tensor in tensors.items()} != _KINDS:
        raise DamagedFile(f"{path} has the right checksum, but doesn't have photos.")
    count, sizes = len(tensors["hashes"]), tensors["sizes"]
    if (
        tensors["hashes"].shape != (count, _HASH)
        or tensors["features"].ndim != 2
        or any(len(tensors[name]) != count for name in ("features", "test", "sizes"))
        or bool((sizes < 0).any())
        or int(sizes.sum()) != len(tensors["jpegs"])
    ):
        raise DamagedFile(f"{path} has the right checksum, but its shapes don't fit.")
    jpegs = tuple(part.numpy().tobytes() for part in tensors["jpegs"].split(sizes.tolist()))
    return Photos(tensors["hashes"], tensors["features"], tensors["test"], jpegs)


def open_kept(jpeg: bytes) -> Image.Image:
    """Decode a kept image; raises `DamagedFile` if it is larger than a model would keep."""
    width, height = width_and_height(jpeg)
    if width * height > _MOST_PIXELS:
        raise DamagedFile(
            f"An image that the model keeps has {width} x {height} pixels, more than a kept image "
            "can have; teach a new model from the photos."
        )
    return open_rgb(jpeg)


def join_photos(parts: Sequence[Photos]) -> Photos:
    """Concatenate photos."""
    hashes, features, test = (
        torch.cat([getattr(part, name) for part in parts])
        for name in ("hashes", "features", "test")
    )
    return Photos(hashes, features, test, tuple(jpeg for part in parts for jpeg in part.jpegs))


def hash_rows(hashes: Sequence[bytes]) -> Tensor:
    """SHA-256 digests as rows of a tensor."""
    return torch.frombuffer(bytearray(b"".join(hashes)), dtype=torch.uint8).view(-1, _HASH)


def small_jpeg(file: Path, size: int) -> bytes:
    """Encode an image without metadata, no larger than test crops of ``size`` need it."""
    image = open_rgb(file, size)
    longest = _LONGEST * min(image.size)
    left, top = (max(0, (side - longest) // 2) for side in image.size)
    image = image.crop((left, top, image.width - left, image.height - top))
    return as_jpeg(shrink(image, shorter_side(size)))


def as_jpeg(image: Image.Image) -> bytes:
    """Encode an image in the JPEG quality of kept images."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_QUALITY, subsampling=0)
    return out.getvalue()
