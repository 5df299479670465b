"""What the page does with a model; knows nothing of how it is shown."""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from PIL import Image

from densekd.data.decode import UnreadableImage, open_rgb
from densekd.model.model import Guess, Model, history, undo
from densekd.model.settings import TeachOptions
from densekd.model.store import HistoryEntry, Store
from densekd.ui.uploads import Upload, counts, lay_out, received, remove
from densekd.ui.worker import UpdateJob

_MOST_LOOKED_AT = 24


class Look(NamedTuple):
    """A file that was looked at.

    Args:
        name: as its owner calls it.
        image: what is in it, if it can be read.
        guesses: what it may show, the likeliest first.
        problem: why it can't be read.
    """

    name: str
    image: Image.Image | None
    guesses: list[Guess]
    problem: str = ""


class Session:
    """A model, and at most one update of it.

    Args:
        folder: of the model; need not exist yet.
        temporary: where received files are, which is deleted when the page is closed.
    """

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.inbox, self._kept = temporary / "inbox", temporary / "kept"
        for place in (self.inbox, self._kept):
            place.mkdir()
        self.job: UpdateJob | None = None
        self._unused = SimpleQueue[Sequence[Upload]]()  # for updates end in threads of their own

    @property
    def running(self) -> bool:
        """Whether an update goes on."""
        return self.job is not None and self.job.running

    def history(self) -> list[HistoryEntry]:
        """All states of the model; none if it was not taught yet."""
        return [] if Store(self.folder).pointer() is None else history(self.folder)

    def current(self) -> HistoryEntry | None:
        """The state that the model is in."""
        return next((entry for entry in self.history() if entry.current), None)

    def undo(self, to: int) -> None:
        """Go to another state."""
        undo(self.folder, to)

    def receive(self, sent: object) -> list[Upload]:
        """Take what was dropped."""
        return received(sent, self.inbox, self._kept)

    def look(self, sent: object, top: int) -> list[Look]:
        """What each of the images that were dropped may show, or why it can't be read."""
        uploads = self.receive(sent)
        try:
            if len(uploads) > _MOST_LOOKED_AT:
                raise ValueError(
                    f"That are {len(uploads):,} images, too many for the page; "
                    f"`densekd predict {self.folder} FOLDER` looks at whole folders."
                )
            if self.current() is None:
                raise ValueError("The model knows nothing yet; teach it first.")
            model = Model.open(self.folder)
            return [_look(model, upload, top) for upload in uploads]
        finally:
            remove(uploads)

    def teach(self, uploads: Sequence[Upload], options: TeachOptions) -> None:
        """Begin an update by images that were received, which belong to it from then on."""
        if self.running:
            raise ValueError("The model is being taught already; wait, or stop that first.")
        self._check(uploads, options)
        place = Path(tempfile.mkdtemp(prefix="lesson-", dir=self._kept.parent))
        lay_out(uploads, place)
        self.job = UpdateJob(
            self.folder, place, options, lambda job: self._tidy(job, uploads, place)
        )

    def give_back(self) -> list[Upload]:
        """The images of updates that failed or were stopped, to whoever asks first."""
        unused: list[Upload] = []
        with suppress(Empty):
            while True:
                unused += self._unused.get_nowait()
        return unused

    def stop(self) -> None:
        """Ask an update to save itself and stop."""
        if self.job is not None and self.job.running:
            self.job.stop()

    def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        if self.job is not None:
            self.job.wait()

    def _tidy(self, job: UpdateJob, uploads: Sequence[Upload], place: Path) -> None:
        shutil.rmtree(place)
        if job.update is None:
            self._unused.put(uploads)
        else:
            remove(uploads)

    def _check(self, uploads: Sequence[Upload], options: TeachOptions) -> None:
        if not uploads:
            raise ValueError("There is nothing to learn from; drop some images first.")
        taught, current = counts(uploads), self.current()
        known = [] if current is None else [each.name for each in current.update.classes]
        if not known and len(taught) < 2:
            raise ValueError(
                "A new model needs two classes or more to tell apart; add another class."
            )
        again = [name for name in taught if name in known]
        if again and options.known == "refuse":
            raise ValueError(
                f"The model knows {again[0]!r} already; give another name, or say that there may "
                "be more images of known classes."
            )


def _look(model: Model, upload: Upload, top: int) -> Look:
    try:
        image = open_rgb(upload.file)
    except UnreadableImage as error:
        return Look(upload.name, None, [], str(error))
    return Look(upload.name, image, model.predict([image], top)[0])
