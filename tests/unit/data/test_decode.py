import io
import math
import os
import struct
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from densekd.data.crops import random_resized_crop
from densekd.data.decode import (
    UnreadableImage,
    available_processors,
    centre_crop,
    decode_all,
    open_rgb,
    try_all,
    width_and_height,
)

Array = NDArray[Any]
ORIENTATION = 0x0112


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(levels)


def positions(width: int, height: int) -> Image.Image:
    """Red counts the columns from 0 to 255, green the rows."""
    y, x = np.mgrid[:height, :width]
    levels = np.stack([x * 255 / (width - 1), y * 255 / (height - 1), 0 * x], -1)
    return Image.fromarray(np.rint(levels).astype(np.uint8))


def pixels(image: Image.Image) -> list[Any]:
    assert image.mode == "RGB"
    listed: list[Any] = np.asarray(image).tolist()
    return listed


def png_header(width: int, height: int) -> bytes:
    """Make a PNG of a few bytes whose header claims that size."""
    content = bytearray(encode(Image.new("RGB", (1, 1)), "PNG"))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def palette() -> Image.Image:
    """Green and red, side by side."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((0, 0), 1)
    return image


RED, GREEN, WHITE, GREY = [255, 0, 0], [0, 255, 0], [255, 255, 255], [90, 90, 90]


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (encode(Image.new("L", (1, 1), 90), "PNG"), [GREY]),
        (encode(Image.new("1", (1, 1), 1), "PNG"), [WHITE]),
        (encode(Image.new("RGB", (1, 1), (255, 0, 0)), "BMP"), [RED]),
        (encode(palette(), "PNG"), [GREEN, RED]),
        (encode(palette(), "GIF"), [GREEN, RED]),
        (encode(palette(), "PNG", transparency=1), [WHITE, RED]),
        (encode(palette(), "PNG", transparency=bytes([255, 0])), [WHITE, RED]),
        (encode(palette(), "PNG", transparency=bytes([0, 255])), [GREEN, WHITE]),
        (encode(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "TIFF"), [RED]),
        (encode(Image.new("LA", (1, 1), (90, 255)), "PNG"), [GREY]),
        (encode(Image.new("LA", (1, 1), (90, 0)), "PNG"), [WHITE]),
        (encode(Image.new("RGBA", (1, 1), (255, 0, 0, 255)), "WEBP", lossless=True), [RED]),
        (encode(Image.new("RGBA", (1, 1), (0, 0, 0, 51)), "PNG"), [[204, 204, 204]]),
        (encode(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG", transparency=(1, 2, 3)), [WHITE]),
        (encode(Image.new("L", (1, 1), 90), "PNG", transparency=90), [WHITE]),
    ],
)
def test_every_mode_becomes_rgb(content: bytes, row: list[list[int]]) -> None:
    assert pixels(open_rgb(content)) == [row]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_the_usual_formats_are_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(encode(Image.new("RGB", (16, 8), (255, 0, 0)), kind))
    image = open_rgb(file)
    assert image.size == (16, 8)
    assert np.abs(np.asarray(image).astype(int) - [255, 0, 0]).max() <= 2


@pytest.mark.parametrize(
    ("kind", "dtype", "mode"),
    [
        ("PNG", "<u2", "I;16"),
        ("TIFF", "<u2", "I;16"),
        ("TIFF", ">u2", "I;16B"),
        ("TIFF", "<i4", "I"),
        ("PPM", "<i4", "I"),
    ],
)
def test_16_bits_are_scaled_and_not_clipped(kind: str, dtype: str, mode: str) -> None:
    levels = np.array([[0, 128, 129, 257, 32768, 65535]]).astype(dtype)
    content = encode(Image.fromarray(levels), kind)
    assert Image.open(io.BytesIO(content)).mode == mode
    assert pixels(open_rgb(content)) == [[[v] * 3 for v in (0, 0, 1, 1, 128, 255)]]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([-3.0, 0.2, 0.4], [0, 51, 102]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([0.0, 257.0, 65535.0], [0, 1, 255]),
        ([0.0, 65535.0, 1e9], [0, 255, 255]),
        ([math.nan, math.inf, 1.0], [0, 0, 255]),
    ],
)
def test_floats_are_scaled_by_the_least_scale_that_holds_them(
    levels: list[float], expected: list[int]
) -> None:
    content = encode(Image.fromarray(np.array([levels], dtype=np.float32)), "TIFF")
    assert pixels(open_rgb(content)) == [[[v] * 3 for v in expected]]


# How [[1, 2, 3], [4, 5, 6]] is shown with each of the EXIF standard's orientations.
UPRIGHT = {
    1: [[1, 2, 3], [4, 5, 6]],
    2: [[3, 2, 1], [6, 5, 4]],
    3: [[6, 5, 4], [3, 2, 1]],
    4: [[4, 5, 6], [1, 2, 3]],
    5: [[1, 4], [2, 5], [3, 6]],
    6: [[4, 1], [5, 2], [6, 3]],
    7: [[6, 3], [5, 2], [4, 1]],
    8: [[3, 6], [2, 5], [1, 4]],
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "u1"), ("PNG", "<u2"), ("TIFF", ">u2")])
def test_rotated_images_are_put_upright(orientation: int, kind: str, dtype: str) -> None:
    step = 1 if dtype == "u1" else 257
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    stored = (np.array([[1, 2, 3], [4, 5, 6]]) * step).astype(dtype)
    content = encode(Image.fromarray(stored), kind, exif=tags)
    assert np.asarray(open_rgb(content))[..., 0].tolist() == UPRIGHT[orientation]


def damaged_tags() -> bytes:
    """Make a JPEG whose first tag rotates it and whose second points beyond the file's end."""
    entries = struct.pack("<HHII", ORIENTATION, 3, 1, 6) + struct.pack("<HHII", 0x010F, 2, 99, 900)
    tags = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 3) + entries
    return encode(Image.new("RGB", (16, 8)), "JPEG", exif=tags)


def test_damaged_tags_do_not_make_an_image_unreadable() -> None:
    with pytest.warns(UserWarning, match=r"Tag|EXIF|Truncated File Read"):
        Image.open(io.BytesIO(damaged_tags())).getexif()
    assert open_rgb(damaged_tags()).size == (8, 16)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encode(noise(64, 64), "JPEG")[:2000], "truncated"),
        (encode(noise(64, 64), "PNG")[:2000], "truncated"),
        (b"just some text", "not an image"),
        (b"", "not an image"),
        (b"\xff\xd8\xff", "not an image"),
        (b"P6 0 0 255\n", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image"),
        (png_header(60_000, 60_000), "more pixels than Pillow's limit of 89478485"),
        (png_header(10_000, 9_000), "more pixels than Pillow's limit of 89478485"),
    ],
)
@pytest.mark.parametrize("as_file", [True, False])
def test_an_unreadable_file_has_a_reason_and_no_warning(
    content: bytes, reason: str, as_file: bool, tmp_path: Path
) -> None:
    file = tmp_path / "image.jpg"
    file.write_bytes(content)
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        with pytest.raises(UnreadableImage, match=reason):
            open_rgb(file if as_file else content)
    assert leaked == []
    kept, ((path, told),) = try_all([file], lambda _: open_rgb(file))
    assert (kept, path) == ([], file)
    assert reason in told


def test_the_header_finds_every_fault_but_damaged_pixels(tmp_path: Path) -> None:
    names = {
        "whole": encode(noise(64, 64), "JPEG"),
        "bomb": png_header(10_000, 9_000),
        "text": b"a",
    }
    names["cut"] = names["whole"][:2000]
    for name, content in names.items():
        (tmp_path / name).write_bytes(content)
    files = [tmp_path / name for name in names]
    kept, unreadable = try_all(files, lambda i: width_and_height(files[i]))
    assert [files[i].name for i in kept] == ["whole", "cut"]
    assert [file.name for file, _ in unreadable] == ["bomb", "text"]


def test_missing_files_and_folders_have_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match=r"^No such file or directory$"):
        open_rgb(tmp_path / "missing.png")
    with pytest.raises(UnreadableImage, match=r"^(Is a directory|Permission denied)$"):
        open_rgb(tmp_path)


def test_threads_leak_no_warning_and_leave_the_filters_alone() -> None:
    contents = [png_header(10_000, 9_000), damaged_tags(), encode(noise(64, 64), "JPEG")]
    results: list[tuple[int, str]] = []

    def read(turn: int) -> None:
        for i in range(turn, turn + 60):
            try:
                results.append((i % 3, str(open_rgb(contents[i % 3]).size)))
            except UnreadableImage as error:
                results.append((i % 3, str(error)))

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(8)]
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(warnings.filters) == before
    assert leaked == []
    assert len(results) == 480
    limit = "it has more pixels than Pillow's limit of 89478485"
    assert set(results) == {(0, limit), (1, "(8, 16)"), (2, "(64, 64)")}


@pytest.mark.parametrize(
    ("width", "height", "size"), [(90, 60, 32), (31, 87, 24), (300, 280, 50), (5, 4, 7), (1, 1, 1)]
)
def test_the_test_crop_is_the_centre_of_the_resized_image(
    width: int, height: int, size: int
) -> None:
    image = noise(width, height)
    scale = round(size * 256 / 224) / min(width, height)
    wide, high = int(width * scale + 1e-9), int(height * scale + 1e-9)
    left, top = round((wide - size) / 2), round((high - size) / 2)
    resized = image.resize((wide, high), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + size, top + size))).transpose(2, 0, 1)
    crop = centre_crop(image, size)
    assert crop.shape == (3, size, size)
    assert crop.dtype == torch.uint8
    # Pillow rounds to whole levels between its two passes, whose order may differ.
    difference = np.abs(crop.numpy().astype(int) - expected)
    assert difference.max() <= 2
    assert difference.mean() < 0.5


@pytest.mark.parametrize(("ending", "decoded"), [("jpg", (256, 192)), ("png", (2048, 1536))])
def test_a_large_photo_is_decoded_no_larger_than_its_crop_needs(
    ending: str, decoded: tuple[int, int], tmp_path: Path
) -> None:
    photo, file = noise(40, 30).resize((2048, 1536), Image.Resampling.BICUBIC), tmp_path / "photo"
    photo.save(file, {"jpg": "JPEG", "png": "PNG"}[ending])
    image = open_rgb(file, crop=64)
    assert image.size == decoded
    assert open_rgb(file).size == open_rgb(file, crop=600).size == (2048, 1536)
    difference = centre_crop(image, 64).int() - centre_crop(open_rgb(file), 64).int()
    assert difference.abs().max() <= 3
    assert difference.abs().float().mean() < 0.5


def test_crops_of_a_very_long_image_stay_small() -> None:
    image = Image.new("RGB", (1, 1_000_000), (255, 0, 0))
    for crop in (
        centre_crop(image, 224),
        random_resized_crop(np.array(image), (224, 224), np.random.default_rng(0)),
    ):
        assert crop.shape == (3, 224, 224)
        assert crop.flatten(1).float().mean(1).tolist() == [255, 0, 0]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.png" for i in range(7)]
    for i, path in enumerate(paths):
        noise(40 + i, 30, seed=i).save(path)
    return paths


def test_readable_files_are_decoded_and_the_others_reported(files: list[Path]) -> None:
    files[0].write_text("text")
    files[4].unlink()
    done: list[tuple[int, int]] = []
    decoded, kept, unreadable = decode_all(files, 16, lambda *count: done.append(count))
    assert kept == [1, 2, 3, 5, 6]
    assert decoded.shape == (5, 3, 16, 16)
    for row, i in zip(decoded, kept, strict=True):
        assert torch.equal(row, centre_crop(open_rgb(files[i]), 16))
    assert [path for path, _ in unreadable] == [files[0], files[4]]
    assert "not an image" in unreadable[0][1]
    assert "No such file" in unreadable[1][1]
    assert done == [(i, 7) for i in range(1, 8)]


def test_no_files_give_no_pixels() -> None:
    decoded, kept, unreadable = decode_all([], 8)
    assert decoded.shape == (0, 3, 8, 8)
    assert (kept, unreadable) == ([], [])


def test_width_and_height_by_the_header_alone(tmp_path: Path) -> None:
    (tmp_path / "whole.png").write_bytes(encode(noise(30, 20), "PNG"))
    (tmp_path / "cut.png").write_bytes(encode(noise(30, 20), "PNG")[:60])
    assert width_and_height(tmp_path / "whole.png") == (30, 20)
    assert width_and_height(tmp_path / "cut.png") == (30, 20)
    with pytest.raises(UnreadableImage, match="No such file"):
        width_and_height(tmp_path / "none.png")


def test_there_is_a_processor() -> None:
    assert 1 <= available_processors() <= (os.cpu_count() or 1)
