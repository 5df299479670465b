import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from densekd.files import DamagedFile
from densekd.model.frozen.photos import Photos, hash_rows, join_photos, load_photos, small_jpeg


def photos(jpegs: tuple[bytes, ...], first: int = 0) -> Photos:
    count = len(jpegs)
    features = torch.arange(first, first + 4 * count).view(count, 4).half()
    test = torch.tensor([i % 2 == 1 for i in range(count)])
    return Photos(hash_rows([bytes([i]) * 32 for i in range(count)]), features, test, jpegs)


def same(one: Photos, other: Photos) -> bool:
    tensors = ("hashes", "features", "test")
    return one.jpegs == other.jpegs and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in tensors
    )


@pytest.mark.parametrize("jpegs", [(b"abc", b"", b"de"), (b"", b"")])
def test_they_are_loaded_as_they_were_saved(jpegs: tuple[bytes, ...], tmp_path: Path) -> None:
    photos(jpegs).save(tmp_path / "photos")
    assert same(load_photos(tmp_path / "photos"), photos(jpegs))


def test_damage_is_noticed(tmp_path: Path) -> None:
    photos((b"abc", b"")).save(tmp_path / "photos")
    (file,) = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFile, match="damaged"):
        load_photos(tmp_path / "photos")


def test_taking_and_joining() -> None:
    first, second = photos((b"a", b"", b"c")), photos((b"d",), first=12)
    both = join_photos([first, second])
    assert both.kept.tolist() == [True, False, True, True]
    assert same(both.take(torch.tensor([0, 1, 2])), first)


def test_an_image_is_made_smaller_and_loses_its_metadata(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010F] = "maker"
    Image.new("RGB", (600, 300), "red").save(tmp_path / "wide.jpg", exif=exif)
    kept = Image.open(io.BytesIO(small_jpeg(tmp_path / "wide.jpg", 112)))
    assert (kept.size, kept.format, dict(kept.getexif())) == ((256, 128), "JPEG", {})


def test_a_large_photo_is_decoded_at_a_part_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (2400, 1600), "red").save(tmp_path / "large.jpg")
    decoded, load = list[tuple[int, int]](), JpegImageFile.load

    def watched(image: JpegImageFile) -> object:
        decoded.append(image.size)
        return load(image)

    monkeypatch.setattr(JpegImageFile, "load", watched)
    kept = Image.open(io.BytesIO(small_jpeg(tmp_path / "large.jpg", 112)))
    assert decoded[0] == (600, 400)  # at least twice as large as what is kept
    assert kept.size == (192, 128)


def test_small_images_keep_their_size_and_panoramas_their_centre(tmp_path: Path) -> None:
    Image.new("RGB", (10, 12), "red").save(tmp_path / "small.png")
    Image.new("RGB", (2000, 128), "red").save(tmp_path / "wide.png")
    sizes = [
        Image.open(io.BytesIO(small_jpeg(tmp_path / name, 112))).size
        for name in ("small.png", "wide.png")
    ]
    assert sizes == [(10, 12), (256, 128)]
