"""What the page shows, as HTML. Names are other people's, and escaped."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from datetime import datetime

from PIL import Image

from densekd.model.store import ClassChange, HistoryEntry, Update
from densekd.ui.session import Look
from densekd.ui.worker import UpdateProgress

_THUMBNAIL = (160, 160)
_NAMES = 6


def cards(looked_at: Sequence[Look]) -> str:
    """Images, and what each may show."""
    return f"<div class='kd-cards'>{''.join(map(_look, looked_at))}</div>"


def _look(look: Look) -> str:
    if look.image is None:
        sentence = f"This can't be read: {look.problem}."
        return _card(f"<div class='kd-no'>?</div>{alert(sentence)}", look.name)
    rows = "".join(_bar(guess.name, guess.probability, "after") for guess in look.guesses)
    return _card(f"{_thumbnail(look.image)}<div class='kd-bars'>{rows}</div>", look.name)


def _card(content: str, name: str) -> str:
    return f"<figure class='kd-card'>{content}<figcaption>{_text(name)}</figcaption></figure>"


def alert(sentence: str) -> str:
    """A sentence that stands out."""
    return f"<p class='kd-alert' role='alert'>{_text(sentence)}</p>" if sentence else ""


def about(name: str, entry: HistoryEntry | None) -> str:
    """Which model it is, and what it knows."""
    if entry is None:
        what = "It knows nothing yet. Teach it two classes or more to begin."
    else:
        classes, right = [each.name for each in entry.update.classes], entry.update.after.all
        what = f"It knows {_classes(len(classes))}: {_text(names(classes))}."
        what += "" if right is None else f" It names {_percent(right)} of its test images right."
    return f"<h1 class='kd-title'>{_text(name)}</h1><p>{what}</p>"


def basket(counts: Mapping[str, int]) -> str:
    """What was dropped to be taught."""
    items = "".join(
        f"<li>{_text(name) if name else '<em>no name yet</em>'} "
        f"<span class='kd-dim'>{_images(count)}</span></li>"
        for name, count in counts.items()
    )
    return f"<ul class='kd-basket'>{items}</ul>" if items else ""


def progress(told: UpdateProgress) -> str:
    """A bar, what is going on, and how long it takes."""
    share, value = "100%", ""  # a bar that moves, if nobody knows
    if told.share is not None:
        share, value = f"{100 * told.share:.1f}%", f" aria-valuenow='{100 * told.share:.0f}'"
    left = "" if told.left is None else f", {_left(told.left)}"
    return (
        f"<div class='kd-progress' role='progressbar'{value}><i style='--share:{share}'></i>"
        f"<span>{_text(told.doing + left)}</span></div>{warnings(told.warnings)}"
    )


def warnings(told: Sequence[str]) -> str:
    """What was found on the way."""
    return "".join(f"<p class='kd-dim'>{_text(each)}</p>" for each in told)


def outcome(update: Update) -> str:
    """What an update did: in a sentence, and class by class."""
    learned = f"<b>{_text(names(update.learned))}</b>"
    said = [f"Step {update.step} learned {learned} from {_images(update.images)}."]
    before, after = update.before, update.after
    if before is not None and before.old is not None and after.old is not None:
        said.append(
            f"Of the classes known before, {_percent(before.old)} of the test images were named "
            f"right, and {_percent(after.old)} are now."
        )
    return f"<p>{' '.join(said)}</p>{chart(update)}"


def chart(update: Update) -> str:
    """The accuracy of each class before and after."""
    before, new = "", set[str]()
    if update.before is not None:
        before, new = "<span class='before'>before</span>", set(update.learned)
    rows = "".join(_change(each, new=each.name in new) for each in update.classes)
    return (
        f"<div class='kd-legend'>{before}<span class='after'>after</span>"
        f"Test images that are named right</div><div class='kd-chart'>{rows}</div>"
    )


def _change(change: ClassChange, *, new: bool) -> str:
    tested = f"{_images(change.tested)} tested" if change.tested else "too few images to test"
    bars = "".join(
        _bar(title, value, title)
        for title, value in (("before", change.before), ("after", change.after))
        if value is not None
    )
    mark = " <span class='kd-new'>new</span>" if new else ""
    return (
        f"<div class='kd-class'><div>{_text(change.name)}{mark}"
        f"<div class='kd-dim'>{tested}</div></div><div class='kd-bars'>{bars}</div></div>"
    )


def history(entries: Sequence[HistoryEntry]) -> str:
    """A table of all states, with a button to go to each of the others."""
    titles = ("step", "when", "learned", "images", "old classes", "all classes", "")
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = "".join(_row(entry) for entry in reversed(entries))
    table = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    note = "<p class='kd-dim'>In %: the test images of these classes that are named right.</p>"
    return f"<div class='kd-wide'><table class='kd-history'>{table}</table></div>{note}"


def _row(entry: HistoryEntry) -> str:
    update = entry.update
    since = "" if entry.parent in (None, entry.step - 1) else f" (after {entry.parent})"
    old = "-" if update.before is None else _from_to(update.before.old, update.after.old)
    button = f"<button data-step='{entry.step}'>Go to step {entry.step}</button>"
    cells = (
        f"{entry.step}{since}",
        datetime.fromisoformat(entry.when).astimezone().strftime("%Y-%m-%d %H:%M"),
        _text(names(update.learned)),
        f"{update.images:,}",
        old,
        _percent(update.after.all),
        "<b>the model is here</b>" if entry.current else button,
    )
    kind = " class='kd-current'" if entry.current else ""
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _from_to(before: float | None, after: float | None) -> str:
    return f"{_percent(before)} → {_percent(after)}"


def names(classes: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(classes) - _NAMES
    if rest <= 1:
        return ", ".join(classes)
    return f"{', '.join(classes[:_NAMES])} and {rest:,} more"


def _bar(label: str, share: float, kind: str) -> str:
    return (
        f"<div class='kd-bar {kind}'><span>{_text(label)}</span>"
        f"<i style='--share:{100 * share:.1f}%'></i><span>{_percent(share)}</span></div>"
    )


def _thumbnail(image: Image.Image) -> str:
    """The image itself, since the browser may not read its format and need not be served files."""
    small = image.copy()
    small.thumbnail(_THUMBNAIL)
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=85)
    return (
        f"<img alt='' src='data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}'>"
    )


def _text(text: str) -> str:
    return html.escape(text)


def _classes(count: int) -> str:
    return "1 class" if count == 1 else f"{count:,} classes"


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _left(seconds: float) -> str:
    if seconds < 60:
        return f"about {seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"
