"""Decode image files, and crop images to one size for testing."""

import functools
import io
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from densekd.data.dataset import OnProgress

_In = TypeVar("_In")
_Out = TypeVar("_Out")

# Pillow reads more formats, but some start other programs (Ghostscript for EPS).
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
_MOST_THREADS = 8
# Files submitted together for each thread: enough to keep it busy, few enough to interrupt quickly.
_AT_ONCE = 32


class UnreadableImage(ValueError):
    """An image file can't be read; the message is a short reason."""


def open_rgb(file: Path | bytes, crop: int | None = None) -> Image.Image:
    """Decode an image, given by path or content, to RGB and turn it upright.

    Transparent parts become white. 16-bit levels and floats are scaled to 8 bits; the full scale of
    floats is the smallest of 1, 255 and 65535 that holds them all.

    With ``crop``, the size of the `centre_crop` to take from it, a much larger photo is decoded at
    an eighth, a quarter or half of its size if its format allows that, but at no less than twice
    the size that the crop needs.

    Raises:
        UnreadableImage: it is missing, not an image, damaged or too large.
    """
    with reading(file) as image:
        if crop is not None:
            image.draft(None, (2 * shorter_side(crop),) * 2)
        image.load()
        return upright_rgb(image)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Convert a Pillow image to RGB and turn it upright, perhaps in place; see `open_rgb`."""
    # Ignore damaged tags, since the picture may be intact. In place, it is turned before Pillow
    # reads the tags a second time.
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _to_8_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def width_and_height(file: Path | bytes) -> tuple[int, int]:
    """Read an image's size from the file's header, before it is turned upright.

    Raises:
        UnreadableImage: it is missing, not an image or too large.
    """
    with reading(file) as image:
        return image.size


@functools.cache
def image_endings() -> frozenset[str]:
    """Return the endings, such as ``.jpg``, of supported image files."""
    known = Image.registered_extensions().items()
    return frozenset(ending for ending, kind in known if kind in _FORMATS)


def centre_crop(
    image: Image.Image, size: int, resample: Image.Resampling = Image.Resampling.BILINEAR
) -> Tensor:
    """Make the test crop of an RGB image: uint8 ``[3, size, size]``.

    The shorter side is resized to ``round(size * 256 / 224)``, then the centre is cut out.
    """
    shorter = min(image.size)
    width, height = (int(shorter_side(size) * side / shorter) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    # Resize only the part that stays: an image of 1 x 50,000 pixels would grow to gigabytes.
    x, y = image.width / width, image.height / height
    right, bottom = min((left + size) * x, image.width), min((top + size) * y, image.height)
    resized = image.resize((size, size), resample, box=(left * x, top * y, right, bottom))
    return torch.from_numpy(np.asarray(resized).transpose(2, 0, 1).copy())


def shrink(image: Image.Image, shorter: int) -> Image.Image:
    """Resize an image so that its shorter side has at most ``shorter`` pixels."""
    factor = min(1.0, shorter / min(image.size))
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def decode_all(
    files: Sequence[Path], size: int, on_progress: OnProgress | None = None
) -> tuple[Tensor, list[int], list[tuple[Path, str]]]:
    """Decode all files to test crops.

    Returns:
        The crops of the m readable files, uint8 ``[m, 3, size, size]``; their m indices into
        ``files``; and the path and reason of each unreadable file.
    """
    pixels = torch.empty(len(files), 3, size, size, dtype=torch.uint8)

    def decode(i: int) -> None:
        pixels[i] = centre_crop(open_rgb(files[i], size), size)

    kept, unreadable = try_all(files, decode, on_progress)
    # Move rows up in place, since a copy would need twice the memory.
    for row, i in enumerate(kept):
        if row < i:
            pixels[row] = pixels[i]
    return pixels[: len(kept)], kept, unreadable


def try_all(
    files: Sequence[_In], read: Callable[[int], object], on_progress: OnProgress | None = None
) -> tuple[list[int], list[tuple[_In, str]]]:
    """Call ``read`` with the index of each file, in threads.

    Returns the indices of readable files, and each other file with the reason.
    """

    def why_unreadable(i: int) -> str | None:
        try:
            read(i)
        except UnreadableImage as error:
            return str(error)
        return None

    reasons = list(in_threads(why_unreadable, range(len(files)), on_progress))
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    return kept, [(files[i], reason) for i, reason in enumerate(reasons) if reason is not None]


def in_threads(
    work: Callable[[_In], _Out], inputs: Sequence[_In], on_progress: OnProgress | None = None
) -> Iterator[_Out]:
    """Map ``work`` over the inputs in threads, in order; Pillow decodes without the GIL."""
    done, threads = 0, min(_MOST_THREADS, available_processors())
    at_once = _AT_ONCE * threads
    with muted, ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(inputs), at_once):
            for result in pool.map(work, inputs[start : start + at_once]):
                done += 1
                if on_progress is not None:
                    on_progress(done, len(inputs))
                yield result


def available_processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Muted:
    """A context that mutes Pillow's warnings while at least one thread is inside.

    ``warnings.catch_warnings`` alone isn't thread-safe: the first thread to leave would restore the
    filters while others still read, and the last could leave warnings muted for good. Entering this
    once around many images is faster.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


muted = _Muted()


@contextmanager
def reading(file: Path | bytes) -> Iterator[Image.Image]:
    """Open an image without loading it, and turn every error into an `UnreadableImage`."""
    source = io.BytesIO(file) if isinstance(file, bytes) else file
    try:
        if isinstance(source, Path):
            _refuse_endless(source)
        with muted, Image.open(source, formats=_openers()) as image:
            if too_large(*image.size):
                raise Image.DecompressionBombError
            yield image
    except Exception as error:  # damaged files make Pillow raise many kinds of errors
        raise UnreadableImage(_reason(error)) from error


def too_large(width: int, height: int) -> bool:
    """Whether an image exceeds Pillow's limit of pixels; Pillow itself reads up to twice that."""
    limit = Image.MAX_IMAGE_PIXELS
    return limit is not None and width * height > limit


def content_of(file: Path | bytes) -> bytes:
    """Read a file, given by path or content; raises `UnreadableImage`."""
    if isinstance(file, bytes):
        return file
    try:
        _refuse_endless(file)
        return file.read_bytes()
    except (OSError, MemoryError) as error:
        raise UnreadableImage(_reason(error)) from error


def _refuse_endless(file: Path) -> None:
    """Refuse a pipe, which would wait for a writer, and a device, which might never end."""
    kind = file.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise UnreadableImage("not a file")


@functools.cache
def _openers() -> tuple[str, ...]:
    """Return those of ``_FORMATS`` that this Pillow can open; JPEG's reader opens MPO too."""
    Image.init()
    return tuple(kind for kind in _FORMATS if kind in Image.OPEN)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or not in a supported format"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more pixels than Pillow's limit of {Image.MAX_IMAGE_PIXELS}"
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale grey levels of 16 bits, or floats, to 0 to 255; NaN and infinity become black."""
    levels = np.nan_to_num(np.asarray(image, dtype=np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    full = 65535.0
    if image.mode == "F":
        peak = float(levels.max())
        full = next((scale for scale in (1.0, 255.0) if peak <= scale), full)
    return Image.fromarray(np.rint((levels / full).clip(0, 1) * 255).astype(np.uint8))


def shorter_side(size: int) -> int:
    """The length of the shorter side from which a test crop of ``size`` is cut."""
    return round(size * 256 / 224)
