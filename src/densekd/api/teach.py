"""`densekd.teach`: an update of a model from photos."""

from pathlib import Path
from typing import Any, Unpack

from densekd.api.signature import with_keywords
from densekd.display.learn_progress import learn_display
from densekd.files import expand_home
from densekd.model.options import TeachKeywords, TeachOptions
from densekd.model.request import TeachObserver
from densekd.model.store import Update
from densekd.model.teach import teach_model


@with_keywords(TeachKeywords)
def teach(
    model: Path | str,
    photos: Path | str,
    given: TeachOptions | None = None,
    *,
    quiet: bool = False,
    observer: TeachObserver | None = None,
    **options: Unpack[TeachKeywords],
) -> Update:
    """Teach a model new classes from a folder of photos; makes the model if there is none.

    Does what ``densekd learn`` does. The model stays as it is until the update is finished. Ctrl-C
    saves the progress and raises `Stopped`; the same call resumes it.

    Args:
        model: the model's folder.
        photos: a folder with a sub-folder of photos for each class.
        given: the options as one value, instead of keywords.
        quiet: show no progress.
        observer: receives the progress instead of the display.
        options: ``known``: what to do with photos of known classes, ``"refuse"`` (the default),
            ``"add"`` or ``"replay"``; ``budget``: minutes that it may take; ``epochs``: for a
            network that is trained. For a new model only, ``network``, ``image_size``, ``method``.

    Returns:
        The accuracy before and after, of all classes and of each.

    Raises:
        ValueError: the photos or an option can't be used; one sentence says why.
        Stopped: it was interrupted and saved.

    Example:
        >>> import densekd
        >>> from PIL import Image
        >>> for name, colour in {"sky": "blue", "grass": "green"}.items():
        ...     Path("photos", name).mkdir(parents=True)
        ...     for i in range(5):
        ...         Image.new("RGB", (40, 40 + i), colour).save(f"photos/{name}/{i}.png")
        >>> densekd.teach("nature.model", "photos", quiet=True).learned
        ('grass', 'sky')
    """
    if given is not None and options:
        raise ValueError(f"Give either one value of options or {', '.join(options)}, not both.")
    chosen = given or TeachOptions(**options)
    with learn_display(quiet=quiet) as display:
        watching: Any = display if observer is None else _StoppedByBoth(observer, display)
        return teach_model(expand_home(model), expand_home(photos), chosen, watching)


class _StoppedByBoth:
    """Passes events to the observer; the display, which notes Ctrl-C, may also stop the update."""

    def __init__(self, observer: TeachObserver, display: TeachObserver) -> None:
        self.observer, self.display = observer, display

    def __getattr__(self, event: str) -> Any:
        return getattr(self.observer, event)

    def stop(self) -> bool:
        return any([self.observer.stop(), self.display.stop()])
