import json
import logging
import os
import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from densekd.files import DamagedFile, to_json
from densekd.training.checkpoint import (
    Checkpoints,
    State,
    load_facts,
    load_state,
    save_state,
)


def state(number: int) -> State:
    return State({"number": number}, {"x": torch.full((3,), number)})


def names(folder: Path) -> list[str]:
    """The files in a folder, without the digests in their names."""
    return sorted(re.sub("-[0-9a-f]{16}", "", name) for name in os.listdir(folder))


def every_kind() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 4, 5, generator=generator)
    row = torch.arange(6.0)
    return {
        "channels_last": images.to(memory_format=torch.channels_last),
        "transposed": images.transpose(0, 3),
        "every_other": images[..., ::2],
        "expanded": row.expand(4, 6),
        "row": row,
        "same row": row,
        "tail of row": row[2:],
        "scalar": torch.tensor(-0.0),
        "empty": torch.empty(0, 7, dtype=torch.float64),
        "bool": row > 2,
        "bf16": images.bfloat16(),
        "half": images.half(),
        "int64": torch.tensor([2**62 + 1, -1]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "not finite": torch.tensor([torch.nan, torch.inf]),
        "weights.Größe": torch.nn.Parameter(row.double() / 3),
    }


def test_tensors_of_every_kind_are_restored(tmp_path: Path) -> None:
    tensors = every_kind()
    save_state(tmp_path / "x", State({}, tensors))
    loaded = load_state(tmp_path / "x").tensors
    assert list(loaded) == sorted(tensors)
    for name, tensor in tensors.items():
        given = loaded[name]
        assert (given.dtype, given.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(given.nan_to_num(9), tensor.nan_to_num(9)), name
        assert not given.requires_grad
        given.zero_()
    assert torch.equal(loaded["row"], torch.zeros(6))
    assert torch.equal(tensors["row"], torch.arange(6.0))


def test_facts_are_restored_in_order(tmp_path: Path) -> None:
    facts = {"z": [0.1, None, 2**60], "classes": ["Bär", os.fsdecode(b"\xe9")], "a": {"": 1e-300}}
    save_state(tmp_path / "run.1" / "x.y", State(facts, {}))
    loaded = load_state(tmp_path / "run.1" / "x.y")
    assert loaded == State(facts, {})
    assert list(loaded.facts) == ["z", "classes", "a"]
    assert names(tmp_path / "run.1") == ["x.y.json", "x.y.safetensors"]


def test_the_files_are_plain_json_and_safetensors(tmp_path: Path) -> None:
    save_state(tmp_path / "x", state(7))
    held = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert (held["format"], held["facts"]) == (1, {"number": 7})
    (file,) = tmp_path.glob("x-*.safetensors")
    assert held["tensors"] == sha256(file.read_bytes()).hexdigest()
    assert load_file(file)["x"].tolist() == [7, 7, 7]


def test_a_state_replaces_only_the_one_of_the_same_name(tmp_path: Path) -> None:
    for number, name in enumerate(["x", "x-x", "[x]", "x", "[x]"]):
        save_state(tmp_path / name, state(number))
    assert len(os.listdir(tmp_path)) == 6
    assert [load_state(tmp_path / name).facts["number"] for name in ("x-x", "x", "[x]")] == [
        1,
        3,
        4,
    ]


def test_missing_unknown_and_damaged_states_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint .*x\.json\."):
        load_state(tmp_path / "x")
    (tmp_path / "x.json").write_bytes(to_json({"format": 2}))
    with pytest.raises(DamagedFile, match=r"x\.json has the format 2, .* reads 1\."):
        load_state(tmp_path / "x")
    for content in (b"", b"{}\n", b"[]", b"\xff"):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(DamagedFile, match=r"x\.json is damaged"):
            load_state(tmp_path / "x")


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    assert checkpoints.newest() is None
    for number in (0, 3, 999_999, 1_000_000):
        checkpoints.save(number, state(number))
        newest = checkpoints.newest()
        assert newest is not None
        assert newest.facts == {"number": number}
    assert names(checkpoints.folder) == [
        "1000000.json",
        "1000000.safetensors",
        "999999.json",
        "999999.safetensors",
    ]


def test_the_same_number_is_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for value in (5, 6, 6):
        checkpoints.save(1, state(value))
        newest = checkpoints.newest()
        assert newest is not None
        assert newest.tensors["x"].tolist() == [value] * 3
        assert names(tmp_path) == ["000001.json", "000001.safetensors"]


def test_the_last_saved_state_is_the_newest_even_with_a_lower_number(tmp_path: Path) -> None:
    """After a damaged checkpoint is skipped, the next one may have a lower number."""
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 4, 5, 3):
        checkpoints.save(number, state(number))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.facts == {"number": 3}


def test_leftovers_of_killed_processes_are_removed_and_other_files_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    strange = ["notes.json", "12.json", "000001-x.safetensors"]
    left = [".000002.json.0123abcd.tmp", "000002-0123456789abcdef.safetensors"]
    for name in (*strange, *left):
        (tmp_path / name).touch()
    checkpoints.save(2, state(2))
    assert not {*left} & {*os.listdir(tmp_path)}
    checkpoints.clear()
    assert sorted(os.listdir(tmp_path)) == sorted(strange)


def test_all_states_are_cleared(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "folder")
    checkpoints.clear()
    checkpoints.save(1, state(1))
    (checkpoints.folder / ".000002.json.0123abcd.tmp").touch()
    checkpoints.clear()
    assert checkpoints.newest() is None
    assert os.listdir(checkpoints.folder) == []


def test_an_intact_checkpoint_logs_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    Checkpoints(tmp_path).save(1, state(1))
    Checkpoints(tmp_path).newest()
    assert caplog.text == ""


def test_wrong_arguments_are_refused_and_write_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="numbered from 0, not -1"):
        checkpoints.save(-1, state(1))
    with pytest.raises(ValueError, match="1 can't be a name"):
        checkpoints.save(1, State({"a": {1: 2}}, {}))
    assert os.listdir(tmp_path) == []


def test_facts_can_be_read_without_the_tensors(tmp_path: Path) -> None:
    save_state(tmp_path / "x", state(7))
    (file,) = tmp_path.glob("*.safetensors")
    file.unlink()
    assert load_facts(tmp_path / "x") == {"number": 7}
    (tmp_path / "x.json").write_text((tmp_path / "x.json").read_text().replace("7", "8"))
    with pytest.raises(DamagedFile, match="is damaged"):
        load_facts(tmp_path / "x")
