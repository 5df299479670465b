import errno
import io
import json
import math
import os
import stat
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from densekd.files import (
    DamagedFile,
    expand_home,
    read_regular_file,
    read_sealed_json,
    read_sealed_line,
    read_sealed_text,
    read_sealed_zip,
    remove_leftovers,
    sealed_line,
    to_json,
    write_atomically,
    write_sealed_json,
    write_sealed_text,
    write_sealed_zip,
)


def test_home_is_expanded_and_an_unknown_user_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.sep + "home")
    assert expand_home("~/photos") == Path(os.sep, "home", "photos")
    for same in ("photos", "a/~", "~no-such-user/photos"):
        assert expand_home(same) == expand_home(Path(same)) == Path(same)
    with pytest.raises(ValueError, match=r"not \['runs'\]; give each folder by itself"):
        expand_home(["runs"])  # type: ignore[arg-type]


def test_a_file_is_written_and_replaced_and_its_folder_made(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "file.txt"
    for content in ("Müller\r\n", b"\x00\xff", ""):
        write_atomically(file, content)
        assert file.read_bytes() == (content if isinstance(content, bytes) else content.encode())
        assert os.listdir(file.parent) == ["file.txt"]


def test_a_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "file", "")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_file_is_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(status.st_mode) else f"file of {status.st_size}")
        fsync(descriptor)

    def noting_replace(old: Path, new: Path) -> None:
        done.append(f"rename to {new.name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    write_atomically(tmp_path / "file", b"12345")
    assert done == ["file of 5", "rename to file", "folder"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failure_leaves_the_old_content_and_nothing_else(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")

    def full(*args: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert (os.listdir(tmp_path), file.read_text()) == (["file"], "old")


def test_only_temporary_files_are_leftovers(tmp_path: Path) -> None:
    others = [".tmp", ".file.tmp", "file.0123abcd.tmp", ".hidden"]
    for name in (".file.json.0123abcd.tmp", ".x.89abcdef.tmp", *others):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    remove_leftovers(tmp_path / "none")


def test_json_is_read_back_unchanged() -> None:
    value = {"z": [1, 2.5, None, True], "a": {"Größe": "日本", "": -0.1}, "e": [], "o": {}}
    text = to_json(value).decode()
    assert json.loads(text) == value
    assert list(json.loads(text)) == ["z", "a", "e", "o"]
    assert '\n "z": [\n  1,' in text
    assert "Größe" in text
    assert text.endswith("}\n")


def test_nan_and_infinity_become_null_at_any_depth() -> None:
    value = {"a": math.nan, "b": [(math.inf, 1.0)], "c": {"d": np.float64(-math.inf)}}
    read = json.loads(to_json(value), parse_constant=lambda name: pytest.fail(name))
    assert read == {"a": None, "b": [[None, 1.0]], "c": {"d": None}}


def test_a_name_that_is_not_utf8_survives() -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    content = to_json([name, "🙂"])
    assert json.loads(content.decode()) == [name, "🙂"]


def test_keys_that_are_not_strings_are_refused() -> None:
    with pytest.raises(ValueError, match="3 can't be a name in JSON; make it a string"):
        to_json({"tasks": [{3: 0.5}]})


def test_sealed_json_is_verified(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_sealed_json(file, {"step": 1, "name": "é", "loss": math.nan})
    content = file.read_bytes()
    assert read_sealed_json(file) == {"step": 1, "name": "é", "loss": None}
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DamagedFile, match=r"x\.json is damaged"):
            read_sealed_json(file)
    for text in ("", "[]", "{}", '{"step": 1}', "[" * 200_000, "1" * 10_000, "\0"):
        file.write_text(text)
        with pytest.raises(DamagedFile, match=r"x\.json is damaged"):
            read_sealed_json(file)
    file.write_text('{"step": 1}')
    assert read_sealed_json(file, unsealed=True) == {"step": 1}


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"123")
    for path, words in ((tmp_path / "pipe", "regular"), (tmp_path / "large", "3 bytes, more than")):
        with pytest.raises(DamagedFile, match=words):
            read_regular_file(path, 2)
    with pytest.raises(DamagedFile, match="regular"):
        read_regular_file(Path("/dev/zero"), 2)


def test_a_flip_in_the_name_of_a_seal_doesnt_make_an_older_file_of_it(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_sealed_json(file, {"step": 1})
    content = file.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DamagedFile, match=r"x\.json is damaged"):
            read_sealed_json(file, unsealed=True)


def test_sealed_json_is_as_before(tmp_path: Path) -> None:
    content = {"a": [1, {"b": None}], "é": "}"}
    sealed = to_json({**content, "sha256": sha256(to_json(content)).hexdigest()})
    write_sealed_json(tmp_path / "x.json", content)
    assert (tmp_path / "x.json").read_bytes() == sealed


def test_a_sealed_line_is_verified() -> None:
    line = sealed_line({"step": 1, "loss": math.nan})
    assert b"\n" not in line
    assert read_sealed_line(line) == {"step": 1, "loss": None}
    assert read_sealed_line(b'{"step": 1}') == {"step": 1}
    for place in range(len(line)):
        changed = bytearray(line)
        changed[place] ^= 1
        assert read_sealed_line(bytes(changed)) is None
    for text in (b"", b"[]", b"1", b"[" * 100_000, line[:-1]):
        assert read_sealed_line(text) is None


def test_sealed_text_is_verified(tmp_path: Path) -> None:
    file, text = tmp_path / "x.toml", 'name = "é"\nsteps = 5\n'
    write_sealed_text(file, text)
    assert tomllib.loads(file.read_text("utf-8")) == {"name": "é", "steps": 5}
    assert read_sealed_text(file, 1000) == text
    content = file.read_bytes()
    for changed in (content[:-10], content.replace(b"= 5", b"= 6"), content + b"\n", b"", b"\n \n"):
        file.write_bytes(changed)
        with pytest.raises(DamagedFile, match=r"x\.toml is damaged"):
            read_sealed_text(file, 1000)
    file.write_bytes(b"name = '\xe9'")
    with pytest.raises(DamagedFile, match=r"x\.toml is damaged"):
        read_sealed_text(file, 1000)
    file.write_text(text, "utf-8")
    assert read_sealed_text(file, 1000) == text


def test_a_sealed_archive_is_verified(tmp_path: Path) -> None:
    file, archive = tmp_path / "x.npz", io.BytesIO()
    np.savez(archive, a=np.arange(3))
    write_sealed_zip(file, archive.getvalue())
    content = file.read_bytes()
    assert read_sealed_zip(file, 10_000) == content
    with np.load(file) as arrays:
        assert arrays["a"].tolist() == [0, 1, 2]
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DamagedFile, match=r"x\.npz is damaged"):
            read_sealed_zip(file, 10_000)
    file.write_bytes(content[:-1])
    with pytest.raises(DamagedFile, match=r"x\.npz is damaged"):
        read_sealed_zip(file, 10_000)
    file.write_bytes(archive.getvalue())
    assert read_sealed_zip(file, 10_000) == archive.getvalue()


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "full", 0o600 | stat.S_IFCHR, os.makedev(1, 7))
    except OSError:
        pytest.skip("only root makes devices")
    with pytest.raises(ValueError, match="full is a device"):
        write_atomically(tmp_path / "full", b"text")
    assert (tmp_path / "full").is_char_device()
