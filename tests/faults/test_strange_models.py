"""A stranger's model is data, and a damaged file ends in a sentence or the right answer."""

import io
import os
import random
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from densekd.cli import app
from densekd.files import read_sealed_json, write_sealed_json
from densekd.model.frozen.photos import load_photos
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model
from densekd.training.checkpoint import load_state, save_state

from support.photos import TINY, fill, picture
from support.tiny_vit import tiny_vit


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, two of them ``trained`` and ``frozen``, that learned twice, and a picture.

    The backbone of ``frozen`` is tiny, so that it opens at once. ``lite0`` has the usual one.
    """
    place = tmp_path_factory.mktemp("place")
    tiny = TeachOptions(network=tiny_vit(place / "vit"))
    for kind, options in (("trained", TINY), ("frozen", tiny), ("lite0", TeachOptions())):
        for counts in ({"red": 6, "green": 6}, {"blue": 6}):
            teach_model(place / kind, fill(place / "images", counts), options)
    picture("blue", 99).save(place / "blue.png")
    return place


@pytest.fixture
def trained(place: Path, tmp_path: Path) -> Path:
    return shutil.copytree(place / "trained", tmp_path / "trained")


@pytest.fixture
def frozen(place: Path, tmp_path: Path) -> Path:
    return shutil.copytree(place / "frozen", tmp_path / "frozen")


@pytest.fixture
def lite0(place: Path, tmp_path: Path) -> Path:
    """One that surely recognises the picture."""
    return shutil.copytree(place / "lite0", tmp_path / "lite0")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        pytest.fail("it asks the network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def check_sentence(result: Result, *words: str) -> None:
    """Check that a command ended in one sentence."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.stdout
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words), result.stderr


def forge(model: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    """Change the newest state, and give it the right checksums."""
    path = model / "steps" / "001" / "state"
    state = load_state(path)
    change(state.facts, state.tensors)
    save_state(path, state)


def forge_settings(model: Path, old: str, new: str) -> None:
    """Change the settings of the newest state, and give them the right checksum."""
    file = model / "steps" / "001" / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    forge(model, lambda facts, _: facts.update(config=sha256(file.read_bytes()).hexdigest()))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('network = "resnet8"', 'network = "resnet2000000"', "There is no CIFAR ResNet-2000000"),
        ('network = "resnet8"', 'network = "wrn-10-99999999"', "There is no WRN-10-99999999"),
        ('network = "resnet8"', 'network = "wrn-1198-32"', "another network"),
        ('network = "resnet8"', 'network = "mine.py:x"', "names code, mine.py:x"),
        ('network = "resnet8"', 'network = "hf:some/model"', "hf:some/model can't be loaded"),
        ("image_size = 8", "image_size = 100000", "100000"),
    ],
)
def test_settings_take_no_time_no_memory_and_no_network(
    old: str, new: str, words: str, trained: Path, place: Path
) -> None:
    forge_settings(trained, old, new)
    check_sentence(call("predict", trained, place / "blue.png"), words)


def test_a_model_of_another_device_opens_on_the_processor(trained: Path, place: Path) -> None:
    expected = call("predict", trained, place / "blue.png", "--json").stdout
    forge_settings(trained, 'accelerator = "cpu"', 'accelerator = "cuda"')
    result = call("predict", trained, place / "blue.png", "--json")
    assert (result.exit_code, result.stdout) == (0, expected)


@pytest.mark.parametrize("parent", [1, 7, -1, "0", 0.5])
def test_a_parent_in_a_circle_ends(parent: object, trained: Path) -> None:
    forge(trained, lambda facts, _: facts.update(parent=parent))
    check_sentence(call("info", trained), "its parent can't be")


FORGED: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], object]] = {
    "no classes": lambda facts, _: facts.pop("classes"),
    "classes of numbers": lambda facts, _: facts.update(classes=[1, 2, 3]),
    "a class twice": lambda facts, _: facts.update(classes=["red", "red", "blue"]),
    "another number of classes": lambda facts, _: facts["classes"].append("more"),
    "no temperature": lambda facts, _: facts.pop("temperature"),
    "a temperature of 0": lambda facts, _: facts.update(temperature=0.0),
    "a temperature in words": lambda facts, _: facts.update(temperature="warm"),
    "no backbone": lambda facts, _: facts.update(backbone=None),
    "a backbone elsewhere": lambda facts, _: facts.update(backbone=9),
    "no head": lambda _, tensors: tensors.pop("head.weight"),
    "a narrow head": lambda _, tensors: tensors.update({"head.weight": torch.zeros(3, 2)}),
    "a deep bias": lambda _, tensors: tensors.update({"head.bias": torch.zeros(3, 1)}),
    "a deep tested bias": lambda _, tensors: tensors.update(
        {"tested_head.bias": torch.zeros(3, 1)}
    ),
    "labels beyond": lambda _, tensors: tensors.update(labels=torch.full((18,), 99)),
    "labels in floats": lambda _, tensors: tensors.update(labels=tensors["labels"].float()),
    "a head in doubles": lambda _, tensors: tensors.update(
        {"head.weight": tensors["head.weight"].double()}
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_wrong_content_with_the_right_checksum(name: str, frozen: Path, place: Path) -> None:
    forge(frozen, FORGED[name])
    check_sentence(call("predict", frozen, place / "blue.png"), "Step 1 of")


def test_wrong_facts_of_a_trained_model(trained: Path, place: Path) -> None:
    forge(trained, lambda facts, _: facts["learner"].update(sizes=[10**9]))
    check_sentence(call("predict", trained, place / "blue.png"), "Step 1 of")
    forge(trained, lambda facts, _: facts.update(learner=[]))
    check_sentence(call("predict", trained, place / "blue.png"), "Step 1 of")


@pytest.mark.parametrize("temperature", [0, -1.0, None, "warm", [1.0]])
def test_a_wrong_temperature_of_a_trained_model(
    temperature: object, trained: Path, place: Path
) -> None:
    forge(trained, lambda facts, _: facts.update(temperature=temperature))
    check_sentence(call("predict", trained, place / "blue.png"), "Step 1 of")


def test_too_many_classes(trained: Path, place: Path) -> None:
    many = {"classes": [str(n) for n in range(100_001)], "sizes": [100_001]}
    forge(trained, lambda facts, _: facts["learner"].update(many))
    check_sentence(call("predict", trained, place / "blue.png"), "more than 100,000 classes")


UPDATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "nothing but a step": lambda facts: facts.update(update={"step": 1}),
    "no update": lambda facts: facts.pop("update"),
    "an update in words": lambda facts: facts.update(update="text"),
    "seconds in words": lambda facts: facts["update"].update(seconds="text"),
    "accuracy in words": lambda facts: facts["update"]["after"].update(all="text"),
    "classes of numbers": lambda facts: facts["update"].update(classes=[1, 2]),
    "a parent in words": lambda facts: facts.update(parent="\x1b[2J"),
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_wrong_record_of_an_update(name: str, frozen: Path) -> None:
    forge(frozen, lambda facts, _: UPDATES[name](facts))
    for command in ("history", "info", "undo"):
        check_sentence(call(command, frozen), "doesn't say what its update did")


INFOS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no calibration": lambda facts: facts.pop("calibration"),
    "a calibration in words": lambda facts: facts["calibration"].update(error="text"),
    "steps in words": lambda facts: facts.update(learned_in="text"),
    "steps of no class": lambda facts: facts.update(learned_in={"none": 1}),
    "a class more": lambda facts: facts["update"]["classes"].pop(),
}


@pytest.mark.parametrize("name", INFOS)
def test_wrong_facts_of_a_description(name: str, frozen: Path) -> None:
    forge(frozen, lambda facts, _: INFOS[name](facts))
    check_sentence(call("info", frozen))


def test_a_note_of_an_erasure_that_says_nothing(frozen: Path) -> None:
    wrong: tuple[dict[str, Any], ...] = ({"step": 2}, {"step": 2, "hashes": 3})
    for content in wrong:
        write_sealed_json(frozen / "erasing.json", content)
        result = call("forget", frozen, "--everywhere", "--yes")
        check_sentence(result, "doesn't say what is being erased", "--repair")
    assert call("check", frozen).exit_code == 1
    assert call("check", frozen, "--repair").exit_code == 0
    assert call("forget", frozen, "red").exit_code == 0


PHOTOS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "no features": lambda tensors: tensors.pop("features"),
    "features in floats": lambda tensors: tensors.update(features=tensors["features"].float()),
    "narrow features": lambda tensors: tensors.update(features=tensors["features"][:, :3].clone()),
    "flat features": lambda tensors: tensors.update(features=tensors["features"][:, 0].clone()),
    "sizes in floats": lambda tensors: tensors.update(sizes=tensors["sizes"].float()),
    "negative sizes": lambda tensors: tensors.update(sizes=-tensors["sizes"]),
    "a photo less": lambda tensors: tensors.update({k: x[1:] for k, x in tensors.items()}),
}


@pytest.mark.parametrize("name", PHOTOS)
def test_wrong_photos_with_the_right_checksum(name: str, frozen: Path) -> None:
    path = frozen / "steps" / "000" / "photos"
    state = load_state(path)
    PHOTOS[name](state.tensors)
    save_state(path, state)
    check_sentence(call("info", frozen), "densekd check")


def test_wrong_test_images_of_a_trained_model(trained: Path) -> None:
    path = trained / "steps" / "000" / "kept"
    state = load_state(path)
    del state.tensors["pixels"]
    save_state(path, state)
    result = call("export", trained, "--to", "torch")
    assert (result.exit_code, "isn't what was saved" in result.stderr) == (2, True)


def test_settings_that_are_a_pipe(trained: Path, place: Path) -> None:
    file = trained / "steps" / "001" / "config.toml"
    file.unlink()
    os.mkfifo(file)
    check_sentence(call("predict", trained, place / "blue.png"), "isn't a regular file")


def test_a_pointer_that_is_a_folder(frozen: Path, place: Path) -> None:
    expected = call("predict", frozen, place / "blue.png", "--json").stdout
    (frozen / "current.json").unlink()
    (frozen / "current.json").mkdir()
    result = call("predict", frozen, place / "blue.png", "--json")
    assert (result.exit_code, result.stdout) == (0, expected)


def test_links_to_themselves(frozen: Path, place: Path) -> None:
    step = frozen / "steps" / "001"
    shutil.rmtree(step)
    step.symlink_to(step)
    check_sentence(call("predict", frozen, place / "blue.png"))
    loop = frozen.with_name("loop")
    loop.symlink_to(loop)
    for command in (("learn", loop, place / "images"), ("learn", frozen, loop), ("info", loop)):
        check_sentence(call(*command))


def test_an_image_bomb_among_those_that_are_kept(frozen: Path) -> None:
    """Refused by its header, before its pixels take memory."""
    content = io.BytesIO()
    Image.new("1", (9000, 9000)).convert("L").save(content, "PNG")
    path = frozen / "steps" / "000" / "photos"
    photos = load_photos(path)
    replace(photos, jpegs=(content.getvalue(), *photos.jpegs[1:])).save(path)
    result = call("export", frozen, "--to", "torch")
    assert (result.exit_code, "9000 x 9000" in result.stderr) == (2, True)
    assert isinstance(result.exception, SystemExit)


def test_tensors_that_are_none(frozen: Path, place: Path) -> None:
    path = frozen / "steps" / "001" / "state"
    content = (2**63).to_bytes(8, "little") + b"{}"
    digest = sha256(content).hexdigest()
    record = read_sealed_json(path.with_suffix(".json"))
    path.with_name(f"state-{digest[:16]}.safetensors").write_bytes(content)
    write_sealed_json(path.with_suffix(".json"), {**record, "tensors": digest})
    check_sentence(call("predict", frozen, place / "blue.png"), "isn't in the format safetensors")


def test_no_link_leads_out_of_a_model(frozen: Path, place: Path) -> None:
    for name in ("steps/001/state.json", "steps/001", "steps"):
        path = frozen / name
        path.rename(frozen.with_name("elsewhere"))
        path.symlink_to(frozen.with_name("elsewhere"))
        check_sentence(call("predict", frozen, place / "blue.png"), "is a link out of the model")
        path.unlink()
        frozen.with_name("elsewhere").rename(path)
    assert call("predict", frozen, place / "blue.png").exit_code == 0


def test_names_do_not_control_the_terminal(lite0: Path, place: Path) -> None:
    odd = "b\x1b]0;owned\x07lue"

    def rename(facts: dict[str, Any], _: object) -> None:
        facts["classes"][2] = facts["update"]["classes"][2]["name"] = odd
        facts["update"]["learned"], facts["when"] = [odd], "\x1b[2J"
        facts["learned_in"][odd] = 1

    forge(lite0, rename)
    for command in (("predict", lite0, place / "blue.png"), ("info", lite0), ("history", lite0)):
        result = call(*command)
        assert result.exit_code == 0, result.stderr
        assert "\\x1b]0;owned" in result.stdout
        assert not {"\x1b", "\x07"} & {*result.stdout, *result.stderr}
    check_sentence(call("forget", lite0, "\x1b[2Jnone"), "knows no class")


def test_names_are_no_formulas(lite0: Path, place: Path, tmp_path: Path) -> None:
    def rename(facts: dict[str, Any], _: object) -> None:
        facts["classes"][2] = "=1+1"

    forge(lite0, rename)
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(place / "blue.png", os.fsdecode(name))
    result = CliRunner().invoke(app, ["predict", str(lite0), os.fsdecode(name), "--csv"])
    assert (result.exit_code, ",1,'=1+1," in result.stdout) == (0, True)
    assert "caf\\udce9.png" in result.stdout


def test_pipes_and_devices_among_images(frozen: Path, place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(place / "blue.png", folder)
    os.mkfifo(folder / "pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.png"))
        result = call("predict", frozen, folder)
    assert result.exit_code == 1
    assert result.stderr.count("can't be read: not a file.") == 3
    assert "blue" in result.stdout
    check_sentence(call("forget", frozen, "--photo", folder / "pipe.png"), "regular file")


def test_names_on_stdin_need_not_be_utf8(lite0: Path, place: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(place / "blue.png", os.fsdecode(name))
    result = CliRunner().invoke(app, ["predict", str(lite0), "-"], input=name + b"\n")
    assert result.exit_code == 0, result.stderr
    assert "blue" in result.stdout


def test_a_page_of_a_file(place: Path) -> None:
    check_sentence(call("ui", place / "blue.png", "--no-browser"), "is a file")


def flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "removed": lambda content, draw: None,
    "empty": lambda content, draw: b"",
    "cut off": lambda content, draw: content[: draw.randrange(len(content))],
    "a flipped bit": flip,
    "nested": lambda content, draw: b"[" * 200_000,
    "zeros": lambda content, draw: bytes(len(content)),
}


# Apart from the backbone, a model on the usual one has the same files as one on another.
@pytest.mark.parametrize(
    ("kind", "names"), [("trained", "*"), ("frozen", "*"), ("lite0", "backbone*")]
)
def test_each_file_damaged_in_each_way(kind: str, names: str, place: Path, tmp_path: Path) -> None:
    """Each command gives the right answer or one sentence, and repairing loses no state."""
    draw, model = random.Random(0), shutil.copytree(place / kind, tmp_path / "model")
    photo = place / "blue.png"
    right = {step: call("predict", model, photo, "--json", "--step", step).stdout for step in "01"}
    files = sorted(file for file in model.rglob(names) if file.is_file() and file.name != "lock")
    assert len(files) > 1
    for file in files:
        content = file.read_bytes()
        for name, damage in DAMAGES.items():
            damaged = damage(content, draw)
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            result = call("predict", model, photo, "--json")
            assert result.exception is None or isinstance(result.exception, SystemExit), (
                file,
                name,
            )
            if result.exit_code == 0:
                assert result.stdout == right["1"], (file, name)
            else:
                check_sentence(result)
            file.write_bytes(content)
