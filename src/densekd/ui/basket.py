"""The photos that are going to be taught. All windows of the page share them."""

import threading
from collections.abc import Iterable

from densekd.ui.uploads import Upload, check_class_name, delete_uploads


class Basket:
    """Uploaded photos by id. Events of the page and the thread of an update may change it."""

    def __init__(self) -> None:
        self.version = 0  # grows with every change
        self._photos: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def photos(self) -> list[Upload]:
        """All photos, in the order in which they were added."""
        with self._lock:
            return list(self._photos.values())

    def find(self, photo: str) -> Upload | None:
        """The photo with this id, if it is here."""
        return self._photos.get(photo)

    def add(self, uploads: Iterable[Upload]) -> None:
        """Add photos."""
        with self._lock:
            self._photos.update({upload.id: upload for upload in uploads})
            self.version += 1

    def take(self, photos: Iterable[str]) -> list[Upload]:
        """Take the photos with these ids out; ids that are not here are ignored."""
        with self._lock:
            taken = [self._photos.pop(photo, None) for photo in photos]
            self.version += 1
        return [upload for upload in taken if upload is not None]

    def remove(self, photos: Iterable[str]) -> None:
        """Remove photos, and delete their files."""
        delete_uploads(self.take(photos))

    def move(self, photos: Iterable[str], name: str) -> None:
        """Put photos into the class ``name``."""
        name = check_class_name(name)
        with self._lock:
            for photo in self._photos.keys() & set(photos):
                self._photos[photo] = self._photos[photo].in_class(name)
            self.version += 1

    def name_rest(self, name: str) -> None:
        """Put the photos that have no class yet into the class ``name``."""
        rest = [upload.id for upload in self.photos() if not upload.folders]
        if rest:
            self.move(rest, name)
