import hashlib
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from densekd.data.decode import UnreadableImage
from densekd.data.folder import check_images, find_images
from densekd.data.pack import PackOptions, _header, pack
from densekd.data.packed import HEADER_BYTES, TENSORS, PackedFile, load_packed, open_packed

from support.class_folders import fill_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    for name, count in (("cat", 3), ("dog", 2)):
        fill_folder(folder / "pets" / name, count, "jpg")
    pack(find_images(folder / "pets").table(), folder / "pets.packed", PackOptions(), 0)
    return folder / "pets.packed"


def test_it_is_a_safetensors_file(target: Path) -> None:
    with safe_open(target, "np") as file:
        assert file.metadata()["format"] == "densekd-packed-1"
        assert file.get_tensor("labels").tolist() == [0, 0, 0, 1, 1]
        assert file.get_tensor("images")[:2].tobytes() == b"\xff\xd8"  # a JPEG begins


def test_images_are_found_by_place_in_this_and_in_other_processes(target: Path) -> None:
    packed = PackedFile(target)
    assert packed.name(4) == "all/dog/001.jpg"
    assert [*pickle.loads(pickle.dumps(packed))] == [*packed]
    assert len(pickle.dumps(packed)) < 1000


def test_a_folder_that_was_not_divided_is_divided_by_the_seed(target: Path) -> None:
    assert {len(load_packed(target, seed=seed).test) for seed in range(3)} == {2}
    with pytest.raises(ValueError, match="image_size must be at least 1"):
        load_packed(target, image_size=0)


def test_what_is_no_packed_file_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no file .*densekd data pack"):
        open_packed(tmp_path / "none")
    with pytest.raises(ValueError, match="directory"):
        open_packed(tmp_path)
    for content in (b"", b"text", bytes(5000), b"{" * 5000):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match=r"can't be used: .*densekd data pack"):
            open_packed(tmp_path / "file")


def test_a_changed_image_is_named_when_it_is_read_and_checked(target: Path, tmp_path: Path) -> None:
    content = bytearray(target.read_bytes())
    content[HEADER_BYTES + int(PackedFile(target).ends[1]) + 30] ^= 1
    (tmp_path / "file").write_bytes(content)
    packed = open_packed(tmp_path / "file")
    with pytest.raises(UnreadableImage, match=r"damaged: the image 'all/cat/001\.jpg'"):
        packed[1]
    counts, ((name, reason),) = check_images(packed.table())
    assert counts == {"all": {"cat": 2, "dog": 2}}
    assert name == Path("all/cat/001.jpg")
    assert "isn't what was packed" in reason


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ends", b""),
        ("classes", b"[" * 100_000),
        ("classes", b'{"classes": ["cat", 7], "parts": ["all"]}'),
        ("classes", b'{"classes": ["cat", "\\ud800"], "parts": ["all"]}'),  # half a character
        ("name_ends", b""),
    ],
)
def test_a_forged_index_is_told_in_one_sentence(
    target: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    packed = PackedFile(target)
    parts = {key: packed._tensors[key].tobytes() for key in TENSORS} | {name: content}
    index = b"".join(part for key, part in parts.items() if key != "images")
    facts = {**packed.facts, "index_sha256": hashlib.sha256(index).hexdigest()}
    header = _header({key: len(part) for key, part in parts.items()}, facts)
    (tmp_path / "forged").write_bytes(header + b"".join(parts.values()))
    with pytest.raises(ValueError, match=r"can't be used: .*densekd data pack"):
        open_packed(tmp_path / "forged")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damage_anywhere_is_told_in_one_sentence(target: Path, data: st.DataObject) -> None:
    content = bytearray(target.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(1, 3))):
        # Half of the changes hit the header and the index, which are a small part of the file.
        parts = st.integers(0, 1200) | st.integers(max(0, len(content) - 900), len(content))
        place = data.draw(parts | st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    damaged = target.with_name("damaged")
    damaged.write_bytes(content)
    unchanged = bytes(content) == target.read_bytes()
    told = ""
    try:
        read = [*open_packed(damaged)]
    except ValueError as error:
        told = str(error)
    if not told:  # only white space of the header may change unnoticed
        assert read == [*PackedFile(target)]
        return
    assert not unchanged
    assert "\n" not in told
    assert "densekd data pack" in told or "pack it again" in told
