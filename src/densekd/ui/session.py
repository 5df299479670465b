"""What the page does with a model; how it looks is up to `densekd.ui.page`."""

import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from densekd.data.decode import UnreadableImage, open_rgb
from densekd.model.frozen.edit import Correction, correct_photos, file_hash
from densekd.model.frozen.model import FrozenModel
from densekd.model.model import Model, history
from densekd.model.options import TeachOptions
from densekd.model.pointer import revision
from densekd.model.store import FROZEN, HistoryEntry, Store
from densekd.ui.basket import Basket
from densekd.ui.predictor import PhotoPredictor
from densekd.ui.reviewer import Reviewer, suspect_id
from densekd.ui.uploads import (
    Upload,
    by_class,
    copy_upload,
    delete_uploads,
    link_by_class,
    take_uploads,
)
from densekd.ui.worker import UpdateInput, UpdateJob

_MAX_PREDICTED = 24
_TOP = 5  # classes to give for a photo
_THUMBNAIL = 224  # pixels


class Session:
    """A model, the photos on its page, and at most one update at a time.

    All windows of the page share it, so a reload loses nothing.

    Args:
        folder: the model's folder; need not exist yet.
        temporary: for uploaded files; deleted when the page is closed.
    """

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.inbox, self._uploads = temporary / "inbox", temporary / "uploads"
        for place in (self.inbox, self._uploads):
            place.mkdir()
        self.basket = Basket()
        self.predictor, self.reviewer = PhotoPredictor(folder, _TOP), Reviewer(folder)
        self.job: UpdateJob | None = None
        self.updates = 0  # number of updates started

    @property
    def busy(self) -> bool:
        """Whether something is going to change soon."""
        working = self.predictor.busy or self.reviewer.busy
        return working or (self.job is not None and self.job.running)

    def revision(self) -> object:
        """A value that changes whenever the model does, even if another program changes it."""
        return revision(self.folder)

    def history(self) -> list[HistoryEntry]:
        """All steps of the model; none if it doesn't exist yet."""
        return [] if Store(self.folder).pointer() is None else history(self.folder)

    def trains(self) -> bool:
        """Whether the model's network is trained at each update, so that epochs can be chosen."""
        store = Store(self.folder)
        pointer = store.pointer()
        return pointer is not None and store.facts(pointer.step).get("kind") != FROZEN

    def current(self) -> HistoryEntry | None:
        """The model's current step."""
        return next((entry for entry in self.history() if entry.current), None)

    def classify(self, sent: object) -> None:
        """Start to predict the classes of the photos that were dropped."""
        uploads, revision = self._receive(sent), self.revision()
        if len(uploads) <= _MAX_PREDICTED and revision is not None:
            self.predictor.show(uploads, revision)
            return
        delete_uploads(uploads)
        if len(uploads) > _MAX_PREDICTED:
            raise ValueError(
                f"The page classifies at most {_MAX_PREDICTED:,} photos at once, not "
                f"{len(uploads):,}; use `densekd predict {self.folder} FOLDER` for more."
            )
        raise ValueError("The model has no classes yet; teach it first.")

    def drop(self, sent: object, name: str) -> None:
        """Add dropped photos to the basket; ``name`` is the class of those without a folder."""
        self.basket.add(self._receive(sent))
        if name.strip():
            self.basket.name_rest(name)

    def drop_predicted(self, photo: str) -> None:
        """Add a copy of a predicted photo to the basket."""
        upload = self.predictor.find(photo)
        if upload is None:
            raise ValueError("This photo is gone; drop it again.")
        self.basket.add([copy_upload(upload)])

    def thumbnail(self, photo: str) -> bytes | None:
        """A small JPEG of a photo on the page; None if it isn't there or can't be read."""
        upload = self.basket.find(photo) or self.predictor.find(photo)
        if upload is None:
            return self.reviewer.images.get(photo)
        try:
            image = open_rgb(upload.file, _THUMBNAIL)
        except UnreadableImage:
            return None
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=85)
        return stream.getvalue()

    def teach(self, options: TeachOptions) -> None:
        """Start an update with the basket's photos, and empty the basket."""
        if self.job is not None and self.job.running:
            raise ValueError("The model is already being taught; wait, or stop that update first.")
        uploads = self.basket.photos()
        self._check(uploads, options)
        place = Path(tempfile.mkdtemp(prefix="update-", dir=self._uploads.parent))

        def clean_up(step: int | None) -> None:
            shutil.rmtree(place, ignore_errors=True)
            left = uploads if step is None else [*not_learned(uploads, self.folder, step)]
            self.basket.add(left)
            kept = {upload.id for upload in left}
            delete_uploads(upload for upload in uploads if upload.id not in kept)

        # Before the job starts: if it fails at once, its thread puts them back.
        self.basket.take(upload.id for upload in uploads)
        try:
            link_by_class(uploads, place)
            self.job = UpdateJob(
                UpdateInput(self.folder, place, options),
                lambda job: clean_up(None if job.update is None else job.update.step),
            )
        except BaseException:  # such as when no process can be started
            clean_up(None)
            raise
        self.updates += 1

    def correct(self, photos: Sequence[str], *, remove: bool) -> None:
        """Remove suspect photos from the model, or move them to the classes that they look like."""
        found = [each for each in self.reviewer.suspects if suspect_id(each) in photos]
        correct_photos(
            self.folder,
            [Correction(x.hash, x.label, None if remove else x.guess) for x in found],
        )

    def stop(self) -> None:
        """Ask a running update to save its progress and stop."""
        if self.job is not None and self.job.running:
            self.job.stop()

    def close(self) -> None:
        """Stop a running update, and wait until it has ended."""
        self.stop()
        self.predictor.close()
        self.reviewer.close()
        if self.job is not None:
            self.job.wait()

    def _receive(self, sent: object) -> list[Upload]:
        return take_uploads(sent, self.inbox, self._uploads)

    def _check(self, uploads: Sequence[Upload], options: TeachOptions) -> None:
        if not uploads:
            raise ValueError("There are no photos to learn from; drop some first.")
        names, current = list(by_class(uploads)), self.current()
        if "" in names:
            raise ValueError("Some photos have no class yet; enter a class name for them.")
        known = [] if current is None else [each.name for each in current.update.classes]
        if not known and len(names) < 2:
            raise ValueError("A new model needs at least two classes; add another class.")
        again = [name for name in names if name in known]
        if again and options.known == "refuse":
            raise ValueError(
                f"The model knows {again[0]!r} already; give another name, or allow more photos "
                "of known classes under Options."
            )


def not_learned(uploads: Sequence[Upload], folder: Path, step: int) -> Iterator[Upload]:
    """The photos that a step didn't learn: unreadable ones, and those beyond a time limit.

    Gives none for a trained model, which doesn't record the photos that it learned.
    """
    try:
        model = Model.open(folder, step)
        taught = model.taught if isinstance(model, FrozenModel) else None
    except (ValueError, OSError):  # changed or damaged meanwhile: lose no photo
        taught = set()
    for upload in uploads:
        if taught is not None and (upload.label, file_hash(upload.file)) not in taught:
            yield upload
