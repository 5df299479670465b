import io
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console
from typer.testing import CliRunner

from densekd.cli import app
from densekd.cli.learn import show_finetuned, show_update
from densekd.display import output
from densekd.model.frozen import finetune
from densekd.model.frozen.finetune import Finetuned
from densekd.model.store import Accuracy, ClassChange, Edit, Update

from support.photos import fill


def test_what_was_learned_least_and_what_was_forgotten_is_named() -> None:
    classes = (
        ClassChange("cat", 10, 0.9, 0.5),
        ClassChange("dog", 10, 0.5, 0.6),
        ClassChange("7", 10, None, 0.1),
        ClassChange("owl", 10, None, 0.9),
        ClassChange("bee", 10, None, 0.2),
        ClassChange("elk", 0, None, None),
    )
    before, after = Accuracy(0.0, 0.7, 0.28), Accuracy(0.41, 0.55, 0.46)
    update = Update(1, ("7", "owl", "bee", "elk"), (), 90, 4, before, after, classes, 3.0)
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    show_update(update, Path("pets"), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[-3:] == [
        "Learned least, in %: 7 10.0, bee 20.0.",
        "Forgot most, in %: cat 90.0 → 50.0.",
        "Without test images: elk.",
    ]


@pytest.mark.parametrize(
    ("learned", "replayed", "said"),
    [
        (("cat", "dog"), (), "learned cat, dog from 90 images"),
        (("cat",), ("owl", "bee"), "learned cat, and more of owl, bee, from 90 images"),
        ((), ("owl",), "learned more of owl from 90 images"),
        ((), (), "learned (erased) from 90 images"),
    ],
)
def test_photos_of_known_classes_are_not_said_to_be_of_new_ones(
    learned: tuple[str, ...], replayed: tuple[str, ...], said: str
) -> None:
    update = Update(1, learned, replayed, 90, 0, None, Accuracy(None, None, None), (), 3.0)
    assert output.update_text(update, "image") == said
    assert output.update_text(update) == said.removesuffix(" from 90 images").removesuffix(",")
    renamed = replace(update, edit=Edit("renamed", ("cat",), 9, "dog"))
    assert output.update_text(renamed, "image") == "renamed cat to dog"


def test_fine_tuning_says_whether_it_helped() -> None:
    classes = (ClassChange("cat", 10, 0.5, 0.9), ClassChange("dog", 10, 0.5, 0.4))
    before, after = Accuracy(None, 0.5, 0.5), Accuracy(None, 0.65, 0.65)
    update = Update(3, (), (), 90, 4, before, after, classes, 63.0)
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    for kept in (True, False):
        show_finetuned(Finetuned(kept, update), Path("pets"), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "Step 3: pets was fine-tuned on 90 kept images in 1 min 3 s, 4 epochs."
    assert "Forgot most, in %: dog 50.0 → 40.0." in lines
    assert lines[-1] == (
        "Fine-tuning took 1 min 3 s and did not help: 65.0 % of the held-out photos are predicted "
        "correctly, 50.0 % without it. pets stays as it was."
    )


@pytest.mark.parametrize(
    "option", ["--epochs 3", "--known add", "--network lite1", "-o memory.per_class=3"]
)
def test_what_fine_tuning_would_ignore_is_refused(option: str) -> None:
    result = CliRunner().invoke(app, ["learn", "model", "--finetune", *option.split()])
    assert result.exit_code == 2
    assert "give a folder of images too" in result.stderr


@pytest.mark.parametrize("finetune", ["--finetune", "--finetune-all"])
@pytest.mark.parametrize(
    "option", ["--epochs 10", "--method fdkd", "--image-size 8", "--network resnet8", "-o seed=1"]
)
def test_a_model_that_fine_tuning_cannot_use_is_not_made(
    option: str, finetune: str, tmp_path: Path
) -> None:
    images, model = fill(tmp_path / "images", {"red": 5, "green": 5}), tmp_path / "model"
    given = [str(model), str(images), finetune, *option.split()]
    result = CliRunner().invoke(app, ["learn", *given])
    assert result.exit_code == 2
    assert "leave out either" in result.stderr
    assert not model.exists()


def test_what_was_learned_is_shown_though_fine_tuning_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*given: object) -> NoReturn:
        raise ValueError("It can't be fine-tuned.")

    classes = (ClassChange("cat", 10, None, 0.9),)
    update = Update(0, ("cat",), (), 90, 4, None, Accuracy(0.9, None, 0.9), classes, 3.0)
    monkeypatch.setattr("densekd.api.teach.teach", lambda *given, quiet: update)
    monkeypatch.setattr(finetune, "finetune_model", fail)
    result = CliRunner().invoke(app, ["learn", "model", "photos", "--finetune"])
    assert result.exit_code == 2
    assert "Step 0: model learned cat" in result.stdout
    assert "can't be fine-tuned" in result.stderr
