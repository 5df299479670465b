from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from densekd.model.frozen.review import find_confusions
from densekd.model.model import Model
from densekd.model.teach import teach_model
from densekd.ui import reviewer as reviewer_module
from densekd.ui.reviewer import Reviewer, image_id

from support.photos import TINY, fill


def test_a_model_is_reviewed_with_the_images_in_question(tmp_path: Path) -> None:
    # Both classes have the same pictures, so that some are taken for the other.
    source = fill(tmp_path / "images", {"red": 40})
    (source / "also red").symlink_to(source / "red")
    teach_model(tmp_path / "model", source, TINY)
    reviewer = Reviewer(tmp_path / "model")
    reviewer.follow(1)
    reviewer.close()
    assert reviewer.confusions == find_confusions(Model.open(tmp_path / "model"))
    assert reviewer.tested == 12
    images = [image for each in reviewer.confusions for image in each.images]
    assert images
    assert reviewer.images == {image_id(image): image for image in images}
    assert not reviewer.busy


def test_a_model_that_cannot_be_opened_has_no_review(tmp_path: Path) -> None:
    reviewer = Reviewer(tmp_path / "no model")
    reviewer.follow(1)
    reviewer.close()
    assert reviewer.tested is None
    assert (reviewer.confusions, reviewer.suspects, reviewer.images) == ([], [], {})


def test_photos_that_cannot_be_read_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(model: object) -> NoReturn:
        raise ValueError("The photos are damaged.")

    update = SimpleNamespace(classes=[SimpleNamespace(tested=5)])
    model = SimpleNamespace(entry=SimpleNamespace(update=update))
    monkeypatch.setattr(Model, "open", lambda folder: model)
    monkeypatch.setattr(reviewer_module, "find_confusions", damaged)
    reviewer = Reviewer(tmp_path)
    reviewer.follow(1)
    reviewer.close()
    assert reviewer.version == 2  # it began, and it ended
    assert reviewer.tested is None  # else the page would say that none was named wrong
    assert reviewer.problem == "The photos are damaged."
