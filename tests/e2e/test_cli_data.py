import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from densekd import cli
from densekd.data.cifar import OFFICIAL
from densekd.data.sources import load
from densekd.display import output


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli.app, ["data", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(*arguments: str | Path) -> str:
    """The sentence of a call that can't be done."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_list_says_what_is_here(tmp_path: Path) -> None:
    (tmp_path / OFFICIAL["cifar10"].archive).write_bytes(b"")
    result = run("list", "--data-dir", tmp_path)
    assert result.exit_code == 0
    lines = {line.split()[0]: line.rstrip() for line in result.stdout.splitlines() if line.strip()}
    assert "yes" in lines["digits"]
    assert lines["cifar10"].endswith("yes: cifar-10-python.tar.gz")
    assert lines["cifar100"].endswith(" no")
    assert "imagenet100:PATH" in lines
    assert str(tmp_path) in lines["CIFAR"]
    assert "densekd data get cifar100" in lines["CIFAR"]


def test_check_counts_the_real_images(real_dir: Path) -> None:
    result = run("check", "cifar100", "--data-dir", real_dir)
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[:3]] == ["intact"] * 3
    assert "100 classes: 50,000 train, 10,000 test." in result.stdout
    assert "Each class has 500 train, 100 test: apple, aquarium_fish," in result.stdout


def test_check_names_what_is_damaged_or_missing(tmp_path: Path) -> None:
    folder = tmp_path / OFFICIAL["cifar100"].folder
    folder.mkdir()
    (folder / "test").write_bytes(b"too short")
    result = run("check", "cifar100", "--data-dir", tmp_path)
    assert result.exit_code == 1
    md5 = hashlib.md5(b"too short").hexdigest()
    train, test, meta, way_out = result.stdout.splitlines()
    assert train == f"missing {folder / 'train'}"
    assert test.startswith(f"damaged {folder / 'test'}: its md5 is {md5} and should be f0ef6b0a")
    assert meta.startswith("missing")
    assert "densekd data get cifar100" in way_out


def test_check_counts_digits_by_class() -> None:
    result = run("check", "digits")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert rows[0] == ["10", "classes:", "1,347", "train,", "450", "test."]
    assert rows[1] == ["class", "train", "test"]
    assert sum(int(row[1]) for row in rows[3:]) == 1347
    assert [row[0] for row in rows[3:]] == list("0123456789")


def test_check_counts_an_npz(tmp_path: Path) -> None:
    images = np.zeros((4, 5, 5), np.uint8)
    names = ["[red]", "ant"]
    np.savez(
        tmp_path / "set.npz",
        train_x=images,
        train_y=[0, 1, 0, 1],
        test_x=images[:2],
        test_y=[0, 1],
        names=names,
    )
    result = run("check", f"npz:{tmp_path / 'set.npz'}")
    assert result.exit_code == 0
    assert "2 classes: 4 train, 2 test." in result.stdout
    assert "Each class has 2 train, 1 test: [red], ant." in result.stdout


def test_check_lists_what_is_wrong_in_a_folder(tmp_path: Path) -> None:
    for label, count in (("[b]ant", 3), ("bee", 2)):
        (tmp_path / label).mkdir()
        for i in range(count):
            Image.new("RGB", (9, 9)).save(tmp_path / label / f"{i}.jpg")
    (tmp_path / "bee" / "notes.txt").write_text("not an image")
    result = run("check", f"folder:{tmp_path}")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["[b]ant", "3"] in rows
    assert ["bee", "2"] in rows
    assert f"Not used (1):\n  {tmp_path / 'bee' / 'notes.txt'}: " in result.stdout
    assert result.stdout.endswith("Every image can be read.\n")

    broken = tmp_path / "bee" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    result = run("check", f"folder:{tmp_path}")
    assert result.exit_code == 1
    assert ["bee", "1"] in [line.split() for line in result.stdout.splitlines()]
    assert f"Can't be read (1):\n  {broken}: " in result.stdout


def test_check_counts_both_parts_of_an_imagenet(tmp_path: Path) -> None:
    for part, count in (("train", 2), ("val", 1)):
        (tmp_path / part / "n01440764").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (9, 9)).save(tmp_path / part / "n01440764" / f"{i}.JPEG")
    result = run("check", f"imagenet:{tmp_path}")
    assert result.exit_code == 0
    assert "1 class: 2 train, 1 val." in result.stdout
    wanted = tmp_path / "classes.txt"
    wanted.write_text("n01440764\n")
    result = run("check", f"imagenet:{tmp_path}", "--classes-file", wanted)
    assert "1 class: 2 train, 1 val." in result.stdout
    wanted.write_text("n01440764\nn02129604\n")
    sentence = refused("check", f"imagenet:{tmp_path}", "--classes-file", wanted)
    assert "no images of the class 'n02129604'" in sentence
    assert "there are 1" in refused("check", f"imagenet100:{tmp_path}")
    shutil.rmtree(tmp_path / "train")
    assert "train" in refused("check", f"imagenet:{tmp_path}")


def test_check_refuses_what_loading_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    (tmp_path / "divided" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "divided" / "test" / "dog").mkdir(parents=True)
    for part, label in (("train", "cat"), ("test", "dog")):
        Image.new("RGB", (9, 9)).save(tmp_path / "divided" / part / label / "0.png")
    for name, words in (("empty", "no readable image"), ("divided", "no training images")):
        sentence = refused("check", f"folder:{tmp_path / name}")
        assert words in sentence
        with pytest.raises(ValueError, match=words):
            load(f"folder:{tmp_path / name}")


def test_what_cannot_be_done_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "did you mean cifar100?" in refused("check", "cifar-100")
    assert "can't be downloaded" in refused("get", f"folder:{tmp_path}")
    assert "is not a file" in refused("check", f"npz:{tmp_path / 'none.npz'}")
    patched = dataclasses.replace(OFFICIAL["cifar100"], url="http://127.0.0.1:9/cifar.tar.gz")
    monkeypatch.setitem(OFFICIAL, "cifar100", patched)
    sentence = refused("get", "cifar100", "--data-dir", tmp_path)
    assert f"download {patched.url} by other means and put it into {tmp_path}" in sentence
    folder = tmp_path / patched.folder
    folder.mkdir()
    for file in patched.md5:
        (folder / file).write_bytes(b"")
    assert f"{folder / 'train'} is damaged; delete it" in refused(
        "get", "cifar100", "--data-dir", tmp_path
    )


def test_check_counts_images_of_ones_own(tmp_path: Path) -> None:
    code = "import numpy as np\nx, y = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6) % 2\n"
    (tmp_path / "mine.py").write_text(f"{code}mine = (x, y, x, y)\n")
    result = run("check", f"{tmp_path / 'mine.py'}:mine")
    assert result.exit_code == 0, result.output
    assert "2 classes: 6 train, 6 test." in result.stdout


def test_packing_names_a_file_whose_name_is_not_text(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "1.png")
    target = tmp_path / os.fsdecode(b"caf\xe9.packed")
    result = run("pack", f"folder:{tmp_path / 'photos'}", target, "--workers", "1")
    assert result.exit_code == 0, result.output
    assert target.exists()
    assert r"Train with --data 'packed:" in result.stdout


def test_get_downloads_once_and_replaces_a_damaged_archive(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    content = b"an archive" * 100_000
    official = OFFICIAL["cifar10"]
    (served / official.archive).write_bytes(content)
    patched = dataclasses.replace(
        official,
        url=f"{url}/{official.archive}",
        archive_md5=hashlib.md5(content).hexdigest(),
    )
    monkeypatch.setitem(OFFICIAL, "cifar10", patched)
    monkeypatch.setattr(output, "_SECONDS_PER_LINE", 0.0)
    target = tmp_path / "sets"
    archive = target / official.archive
    result = run("get", "cifar10", "--data-dir", target)
    assert result.exit_code == 0
    assert result.stdout == (
        f"Downloading {patched.url} to {target}.\ncifar10 is downloaded and intact: {archive}.\n"
    )
    assert result.stderr.splitlines()[-1] == "cifar10: 1,000,000 of 1,000,000 (100%) bytes"
    assert archive.read_bytes() == content
    result = run("get", "cifar10", "--data-dir", target)
    assert result.stdout == f"cifar10 is already here and intact: {archive}.\n"
    archive.write_bytes(b"damaged")
    assert run("get", "cifar10", "--data-dir", target).exit_code == 0
    assert archive.read_bytes() == content


def test_digits_need_no_download() -> None:
    result = run("get", "digits")
    assert result.exit_code == 0
    assert "nothing to download" in result.stdout


@pytest.mark.parametrize("command", ["list", "check", "get"])
def test_help_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"densekd data {command} " in result.stdout.partition("Example")[2]


def test_the_command_as_it_is_installed(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "densekd", "data", "check", "npz:none.npz"]
    result = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "Error: none.npz is not a file; npz:FILE takes one that numpy.savez wrote.\n"
    )


def test_the_command_loads_no_data_library_before_it_is_needed() -> None:
    heavy = {"torch", "densekd.data.sources", "sklearn", "datasets", "pooch"}
    code = f"import sys, densekd.cli; print({heavy} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"
