"""Readers of files that may be damaged or a stranger's: any content is read, or refused."""

import io
import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from densekd.config.schema import as_toml, as_tree, resolve
from densekd.config.settings_tree import flat, nested, override, read_toml
from densekd.data.decode import UnreadableImage, open_rgb, width_and_height
from densekd.data.packed import HEADER_BYTES, TENSORS, PackedFile
from densekd.files import DamagedFile, read_sealed_json, sealed_json, to_json
from densekd.model.pointer import read_pointer
from densekd.model.store import Update, update_from_json
from densekd.training.checkpoint import State, load_state, save_state

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
# Numbers that count something, and are absurd as a count.
odd_settings = st.one_of(
    json_values,
    st.sampled_from([10**20, -(10**20), 1e308, 5e-324, 0.0, -1, "", "none", [], {}]),
)
KEYS = sorted(flat(as_tree(resolve({}))))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


@given(st.dictionaries(st.text(max_size=5), json_values, min_size=1, max_size=4))
def test_sealed_json_is_read_as_it_was_written(place: Path, content: dict[str, Any]) -> None:
    file = place / "sealed.json"
    file.write_bytes(sealed_json(content))
    assert read_sealed_json(file) == json.loads(to_json(content))


@given(st.binary(max_size=200) | json_values.map(to_json))
def test_anything_else_is_not_sealed_json(place: Path, content: bytes) -> None:
    file = place / "sealed.json"
    file.write_bytes(content)
    with pytest.raises(DamagedFile):
        read_sealed_json(file)


@given(st.data())
def test_no_changed_byte_of_sealed_json_is_accepted(place: Path, data: st.DataObject) -> None:
    content = bytearray(sealed_json({"step": 3, "names": ["é", "b"], "share": 0.5}))
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] ^= data.draw(st.integers(1, 255))
    file = place / "changed.json"
    file.write_bytes(content)
    with pytest.raises(DamagedFile):
        read_sealed_json(file)


@given(st.binary(max_size=100) | json_values.map(to_json))
def test_a_pointer_is_read_lost_or_refused(place: Path, content: bytes) -> None:
    (place / "current.json").write_bytes(content)
    with suppress(ValueError):
        pointer = read_pointer(place)
        assert pointer is None or 0 <= pointer.step < pointer.steps


@given(st.binary(max_size=300), st.booleans())
def test_a_state_with_any_tensors(place: Path, content: bytes, header: bool) -> None:
    """Any bytes as tensors, also with a header of the right length, and the right checksums."""
    _load_tensors(place, len(content).to_bytes(8, "little") + content if header else content)


@given(st.dictionaries(st.text("abc", min_size=1), json_values, max_size=3))
def test_headers_of_safetensors(place: Path, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    _load_tensors(place, len(text).to_bytes(8, "little") + text + bytes(16))


def _load_tensors(place: Path, content: bytes) -> None:
    """Load a state whose tensors have this content, or check that it is refused."""
    digest = sha256(content).hexdigest()
    (place / f"any-{digest[:16]}.safetensors").write_bytes(content)
    facts = {"format": 1, "facts": {}, "tensors": digest}
    (place / "any.json").write_bytes(sealed_json(facts))
    with suppress(DamagedFile):
        assert load_state(place / "any").facts == {}


@given(
    st.dictionaries(st.sampled_from([*TENSORS, "__metadata__"]), json_values, max_size=9),
    st.binary(max_size=40),
)
def test_headers_of_packed_images(place: Path, header: dict[str, Any], rest: bytes) -> None:
    text = json.dumps(header).encode().ljust(HEADER_BYTES - 8)
    file = place / "any.packed"
    file.write_bytes(len(text).to_bytes(8, "little") + text + rest)
    with suppress(DamagedFile):
        assert PackedFile(file).path == file


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=3), json_values)
def test_facts_of_a_state(place: Path, facts: dict[str, Any], tensors: Any) -> None:
    save_state(place / "facts", State(facts, {"x": torch.zeros(2)}))
    assert load_state(place / "facts").facts == json.loads(to_json(facts))
    (place / "facts.json").write_bytes(
        sealed_json({"format": 1, "facts": facts, "tensors": tensors})
    )
    with pytest.raises(DamagedFile):
        load_state(place / "facts")


@given(st.one_of(json_values, st.fixed_dictionaries({"step": json_values, "after": json_values})))
def test_updates_are_rebuilt_or_refused(facts: Any) -> None:
    with suppress(ValueError):
        assert isinstance(update_from_json(facts), Update)


@given(st.sampled_from(KEYS), odd_settings)
def test_settings_are_resolved_or_refused(key: str, value: Any) -> None:
    _check_settings(nested({key: value}))


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(["data", "method"]), json_values))
def test_any_tree_of_settings(tree: dict[str, Any]) -> None:
    _check_settings(tree)


@given(st.text(max_size=60), st.sampled_from(KEYS))
def test_overrides_are_taken_or_refused(text: str, key: str) -> None:
    for assignment in (text, f"{key}={text}"):
        try:
            tree = override({}, [assignment])
        except ValueError:
            continue
        _check_settings(tree)


@given(st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode()))
def test_files_of_settings_are_read_or_refused(place: Path, content: bytes) -> None:
    file = place / "settings.toml"
    file.write_bytes(content)
    try:
        tree = read_toml(file)
    except ValueError:
        return
    _check_settings(tree)


def _check_settings(tree: Mapping[str, Any]) -> None:
    """Check that settings are refused, or can be written and read again."""
    try:
        config = resolve(tree)
    except ValueError:
        return
    assert resolve(tomllib.loads(as_toml(config))) == config


def _picture(kind: str) -> bytes:
    content = io.BytesIO()
    Image.linear_gradient("L").resize((17, 9)).convert("RGB").save(content, kind)
    return content.getvalue()


PICTURES = {kind: _picture(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")}


@given(st.sampled_from(sorted(PICTURES)), st.data())
def test_images_are_decoded_or_refused(kind: str, data: st.DataObject) -> None:
    """Changed bytes are mostly in the header, where sizes and offsets are."""
    content = bytearray(PICTURES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, min(60, len(content) - 1)))
        content[where] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(content)))
    with suppress(UnreadableImage):
        assert min(width_and_height(bytes(content[:cut]))) >= 0
    with suppress(UnreadableImage):
        assert open_rgb(bytes(content[:cut])).mode == "RGB"


@given(st.binary(max_size=200), st.sampled_from(sorted(PICTURES)))
def test_anything_after_the_first_bytes_of_an_image(rest: bytes, kind: str) -> None:
    with suppress(UnreadableImage):
        assert open_rgb(PICTURES[kind][:12] + rest).mode == "RGB"
