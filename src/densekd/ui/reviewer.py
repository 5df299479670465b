"""Finds a model's mistakes for the page, with the photos in question."""

from hashlib import sha256
from pathlib import Path

from densekd.model.frozen.review import Confusion, Suspect, find_confusions, find_suspects
from densekd.ui.follower import ModelFollower, problem_of

_MAX_SUSPECTS = 12


class Reviewer(ModelFollower):
    """The mistakes of a model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tested: int | None = None  # number of test photos; None if unknown
        self.problem = ""  # why it is unknown, if there was an error
        self.confusions: list[Confusion] = []
        self.suspects: list[Suspect] = []
        self.images: dict[str, bytes] = {}  # JPEGs by id

    def _work(self, revision: object) -> None:
        try:
            model = self._open(revision)
            confusions = find_confusions(model)
            self.tested = sum(each.tested for each in model.entry.update.classes)
            self._show(confusions, [])  # first, because finding suspects takes seconds
            self._show(confusions, find_suspects(model, _MAX_SUSPECTS))
        except Exception as error:
            self.tested, self.problem = None, problem_of(error)
            self._show([], [])

    def _show(self, confusions: list[Confusion], suspects: list[Suspect]) -> None:
        images = [image for each in confusions for image in each.images]
        images += [each.image for each in suspects]
        self.images = {image_id(image): image for image in images}
        self.confusions, self.suspects = confusions, suspects
        self.version += 1


def image_id(image: bytes) -> str:
    """The id of an image on the page."""
    return sha256(image).hexdigest()[:16]


def suspect_id(found: Suspect) -> str:
    """The id of a suspect on the page: the same image may have been taught as two classes."""
    return image_id(found.hash + found.label.encode())
