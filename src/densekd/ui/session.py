"""What the page does with a model; how it looks is up to `densekd.ui.page`."""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from PIL import Image

from densekd.data.decode import UnreadableImage, open_rgb
from densekd.model.model import Guess, Model, history
from densekd.model.settings import TeachOptions
from densekd.model.store import HistoryEntry, Store
from densekd.ui.uploads import Upload, class_counts, delete_uploads, link_by_class, take_uploads
from densekd.ui.worker import UpdateInput, UpdateJob

_MAX_PREDICTED = 24


class ImagePrediction(NamedTuple):
    """An uploaded image with its likeliest classes, or the reason why it can't be read."""

    name: str
    image: Image.Image | None
    guesses: list[Guess]
    problem: str = ""


class Session:
    """A model, and at most one update of it at a time.

    Args:
        folder: the model's folder; need not exist yet.
        temporary: for uploaded files; deleted when the page is closed.
    """

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.inbox, self._uploads = temporary / "inbox", temporary / "uploads"
        for place in (self.inbox, self._uploads):
            place.mkdir()
        self.job: UpdateJob | None = None
        self._unused = SimpleQueue[Sequence[Upload]]()  # filled by the threads of updates

    def history(self) -> list[HistoryEntry]:
        """All steps of the model; none if it doesn't exist yet."""
        return [] if Store(self.folder).pointer() is None else history(self.folder)

    def current(self) -> HistoryEntry | None:
        """The model's current step."""
        return next((entry for entry in self.history() if entry.current), None)

    def receive(self, sent: object) -> list[Upload]:
        """Take the files that were dropped on the page."""
        return take_uploads(sent, self.inbox, self._uploads)

    def predict(self, sent: object, top: int) -> list[ImagePrediction]:
        """The ``top`` likeliest classes of each image that was dropped."""
        uploads = self.receive(sent)
        try:
            if len(uploads) > _MAX_PREDICTED:
                raise ValueError(
                    f"{len(uploads):,} images selected, too many for the page; use "
                    f"`densekd predict {self.folder} FOLDER` for whole folders."
                )
            if self.current() is None:
                raise ValueError("The model has no classes yet; teach it first.")
            model = Model.open(self.folder)
            return [_predict(model, upload, top) for upload in uploads]
        finally:
            delete_uploads(uploads)

    def teach(self, uploads: Sequence[Upload], options: TeachOptions) -> None:
        """Start an update with uploaded images, which belong to it from then on."""
        if self.job is not None and self.job.running:
            raise ValueError("The model is being taught already; wait, or stop that first.")
        self._check(uploads, options)
        place = Path(tempfile.mkdtemp(prefix="update-", dir=self._uploads.parent))
        link_by_class(uploads, place)

        def clean_up(job: UpdateJob) -> None:
            shutil.rmtree(place)
            if job.update is None:
                self._unused.put(uploads)
            else:
                delete_uploads(uploads)

        self.job = UpdateJob(UpdateInput(self.folder, place, options), clean_up)

    def take_unused(self) -> list[Upload]:
        """The images of updates that failed or were stopped; each is given out once."""
        unused: list[Upload] = []
        with suppress(Empty):
            while True:
                unused += self._unused.get_nowait()
        return unused

    def stop(self) -> None:
        """Ask a running update to save its progress and stop."""
        if self.job is not None and self.job.running:
            self.job.stop()

    def close(self) -> None:
        """Stop a running update, and wait until it has ended."""
        self.stop()
        if self.job is not None:
            self.job.wait()

    def _check(self, uploads: Sequence[Upload], options: TeachOptions) -> None:
        if not uploads:
            raise ValueError("There are no images to learn from; drop some images first.")
        counts, current = class_counts(uploads), self.current()
        known = [] if current is None else [each.name for each in current.update.classes]
        if not known and len(counts) < 2:
            raise ValueError("A new model needs at least two classes; add another class.")
        again = [name for name in counts if name in known]
        if again and options.known == "refuse":
            raise ValueError(
                f"The model knows {again[0]!r} already; give another name, or allow more images "
                "of known classes under Options."
            )


def _predict(model: Model, upload: Upload, top: int) -> ImagePrediction:
    try:
        image = open_rgb(upload.file)
    except UnreadableImage as error:
        return ImagePrediction(upload.name, None, [], str(error))
    return ImagePrediction(upload.name, image, model.predict([image], top)[0])
