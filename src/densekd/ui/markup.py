"""The HTML of the page's contents. Names come from users, so they are escaped."""

import html
from collections.abc import Sequence

from densekd.display import output
from densekd.jobs.events import JobProgress
from densekd.model.frozen.review import Confusion, Suspect
from densekd.model.images import FEWEST_TO_TEST
from densekd.model.store import ClassChange, HistoryEntry, Update
from densekd.ui.predictor import PhotoPrediction
from densekd.ui.reviewer import image_id, suspect_id
from densekd.ui.uploads import Upload, by_class

_MAX_NAMES = 6
_MAX_CONFUSIONS, _MAX_WRONG = 20, 24  # pairs of classes shown, and photos of each


def prediction_cards(predictions: Sequence[PhotoPrediction]) -> str:
    """Photos with their likeliest classes."""
    return f"<div class='kd-cards'>{''.join(map(_card, predictions))}</div>"


def _card(prediction: PhotoPrediction) -> str:
    photo = prediction.photo
    return (
        f"<figure class='kd-card'>{_image(photo.id, photo.name)}{_answer(prediction)}"
        f"<figcaption>{html.escape(photo.name)}</figcaption></figure>"
    )


def _answer(prediction: PhotoPrediction) -> str:
    found = prediction.prediction
    if found is None:
        return alert(prediction.problem) or "<p class='kd-dim'>Predicting</p>"
    bars = "".join(_bar(each.name, each.probability, "after") for each in found)
    if not found.known:
        bars = (
            "<p><b>None of these.</b> It doesn't look like anything that the model was "
            f"taught.</p><details><summary>Closest classes</summary>{bars}</details>"
        )
    button = f"<button data-teach='{prediction.photo.id}'>Teach this photo</button>"
    return f"<div><div class='kd-bars'>{bars}</div>{button}</div>"


def alert(sentence: str) -> str:
    """A sentence that stands out."""
    return f"<p class='kd-alert' role='alert'>{html.escape(sentence)}</p>" if sentence else ""


def model_header(name: str, entry: HistoryEntry | None) -> str:
    """The model's name, classes and accuracy."""
    text = "No classes yet. Teach two or more classes to start."
    if entry is not None:
        classes, accuracy = [each.name for each in entry.update.classes], entry.update.after.all
        text = f"{output.count(len(classes), 'class', 'classes')}: {_short_list(classes)}."
        if accuracy is not None:
            text += f" Accuracy on test photos: {_percent(accuracy)}."
    return f"<h1 class='kd-title'>{html.escape(name)}</h1><p>{text}</p>"


def basket(photos: Sequence[Upload]) -> str:
    """The photos that are going to be taught, by class, with buttons to change that."""
    groups = by_class(photos)
    if not groups:
        return ""
    names = "".join(f"<option value='{html.escape(name)}'>" for name in groups if name)
    sections = "".join(_class_section(name, own) for name, own in groups.items())
    return (
        f"<div class='kd-basket'>{sections}<div class='kd-selection' hidden><span></span>"
        "<input list='kd-classes' aria-label='Move to class' placeholder='Class name'>"
        f"<datalist id='kd-classes'>{names}</datalist>"
        "<button data-act='move'>Move to this class</button>"
        "<button data-act='remove-selected'>Remove</button></div></div>"
    )


def _class_section(name: str, photos: Sequence[Upload]) -> str:
    title, label = "No class yet", ""
    more = "<p class='kd-dim'>Enter their class name in the field above.</p>"
    if name:
        title = label = html.escape(name)
        more = "<button data-act='add-more'>Add more</button>"
    tiles = "".join(map(_tile, photos))
    return (
        f"<section data-class='{label}'><header><h3>{title}</h3>"
        f"<span class='kd-dim'>{_photos(len(photos))}</span>{more}"
        "<button data-act='select-class'>Select all</button>"
        "<button data-act='remove-class'>Remove all</button></header>"
        f"<ul class='kd-tiles'>{tiles}</ul></section>"
    )


def _tile(photo: Upload) -> str:
    name = html.escape(photo.name)
    return (
        f"<li><button data-photo='{photo.id}' aria-pressed='false' aria-label='Select {name}'"
        f" title='{name}'>{_image(photo.id, photo.name)}</button>"
        f"<button data-act='remove' aria-label='Remove {name}'>&times;</button></li>"
    )


def job_progress(progress: JobProgress, warnings: Sequence[str]) -> str:
    """A bar with what is being done and the time left, and the warnings so far."""
    share, value = "100%", ""  # without a value, the bar pulsates
    if progress.share is not None:
        percent = 100 * progress.share
        share, value = f"{percent:.1f}%", f" aria-valuenow='{percent:.0f}'"
    left = "" if progress.left is None else f", {_time_left(progress.left)}"
    return (
        f"<div class='kd-progress' role='progressbar'{value}><i style='--share:{share}'></i>"
        f"<span>{html.escape(progress.doing + left)}</span></div>{warning_list(warnings)}"
    )


def warning_list(warnings: Sequence[str]) -> str:
    """A paragraph for each warning."""
    return "".join(f"<p class='kd-dim'>{html.escape(each)}</p>" for each in warnings)


def update_result(update: Update) -> str:
    """What an update did: in a sentence, and class by class."""
    text = f"Step {update.step} {_update_text(update, 'photo')}."
    before, after = update.before, update.after
    if before is not None and before.old is not None and after.old is not None:
        text += f" Accuracy on old classes: {_percent(before.old)} → {_percent(after.old)}."
    return f"<p>{text}</p>{accuracy_chart(update)}"


def _update_text(update: Update, noun: str = "") -> str:
    """What an update did, in words."""
    return html.escape(output.update_text(update, noun, _MAX_NAMES))


def accuracy_chart(update: Update) -> str:
    """The accuracy of each class before and after."""
    before, new = "", set[str]()
    if update.before is not None:
        before, new = "<span class='before'>before</span>", set(update.learned)
    rows = "".join(_chart_row(each, new=each.name in new) for each in update.classes)
    return (
        f"<div class='kd-legend'>{before}<span class='after'>after</span>"
        f"Accuracy on test photos</div><div class='kd-chart'>{rows}</div>"
    )


def _chart_row(change: ClassChange, *, new: bool) -> str:
    tested = f"{_photos(change.tested)} tested" if change.tested else "too few photos to test"
    bars = "".join(
        _bar(title, value, title)
        for title, value in (("before", change.before), ("after", change.after))
        if value is not None
    )
    mark = " <span class='kd-new'>new</span>" if new else ""
    return (
        f"<div class='kd-class'><div>{html.escape(change.name)}{mark}"
        f"<div class='kd-dim'>{tested}</div></div><div class='kd-bars'>{bars}</div></div>"
    )


def confusions(found: Sequence[Confusion], tested: int) -> str:
    """Which classes are taken for which, with the photos."""
    if not tested:
        return (
            f"<p>No test photos yet. Teach at least {FEWEST_TO_TEST} photos of a class to see "
            "mistakes.</p>"
        )
    wrong = sum(len(each.images) for each in found)
    text = (
        f"The model was tested on {_photos(tested)} that it did not learn from, and misclassified "
        f"{wrong or 'none'} of them."
    )
    sections = "".join(map(_confusion, found[:_MAX_CONFUSIONS]))
    return (
        f"<h2>Classes that are mixed up</h2><p>{text}</p><div class='kd-mistakes'>{sections}</div>"
    )


def _confusion(found: Confusion) -> str:
    tiles = "".join(f"<li>{_image(image_id(image))}</li>" for image in found.images[:_MAX_WRONG])
    return (
        f"<section><header><h3>{html.escape(found.label)}</h3> taken for "
        f"<h3>{html.escape(found.guess)}</h3><span class='kd-dim'>{len(found.images)} of "
        f"{_photos(found.tested)}</span></header><ul class='kd-tiles'>{tiles}</ul></section>"
    )


def suspects(found: Sequence[Suspect]) -> str:
    """Photos that may be in the wrong class."""
    if not found:
        return ""
    tiles = "".join(map(_suspect, found))
    return (
        "<h2>Photos that may be in the wrong class</h2><p>These photos were taught as one class "
        "but look like another. Those in the wrong class make the model worse: click them to move "
        f"or remove them.</p><ul class='kd-tiles kd-suspects'>{tiles}</ul><div "
        "class='kd-selection' hidden><span></span><button data-act='move'>Move to the class they "
        "look like</button><button data-act='remove-selected'>Remove from the model</button></div>"
    )


def _suspect(found: Suspect) -> str:
    label, guess = html.escape(found.label), html.escape(found.guess)
    return (
        f"<li><button data-photo='{suspect_id(found)}' aria-pressed='false'"
        f" aria-label='Select photo of {label}'>{_image(image_id(found.image))}</button>"
        f"<p>Taught as <b>{label}</b>, looks like <b>{guess}</b></p></li>"
    )


def history_table(entries: Sequence[HistoryEntry]) -> str:
    """All steps, with a button to go to each that isn't current."""
    titles = ("step", "when", "what it did", "photos", "old classes", "all classes", "")
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = "".join(_history_row(entry) for entry in reversed(entries))
    table = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    note = "<p class='kd-dim'>Old and all classes: accuracy on test photos.</p>"
    return f"<div class='kd-wide'><table class='kd-history'>{table}</table></div>{note}"


def _history_row(entry: HistoryEntry) -> str:
    update, old = entry.update, "-"
    since = "" if entry.parent in (None, entry.step - 1) else f" (after {entry.parent})"
    if update.before is not None:
        old = f"{_percent(update.before.old)} → {_percent(update.after.old)}"
    button = f"<button data-step='{entry.step}'>Go to step {entry.step}</button>"
    cells = (
        f"{entry.step}{since}",
        html.escape(output.local_time(entry.when)),
        _update_text(update),
        f"{update.images:,}",
        old,
        _percent(update.after.all),
        "<b>current</b>" if entry.current else button,
    )
    kind = " class='kd-current'" if entry.current else ""
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _short_list(names: Sequence[str]) -> str:
    """The first few names, and the number of the rest; there are none if all were erased."""
    return html.escape(output.name_list(names, _MAX_NAMES)) or "(erased)"


def _bar(label: str, share: float, kind: str) -> str:
    return (
        f"<div class='kd-bar {kind}'><span>{html.escape(label)}</span>"
        f"<i style='--share:{100 * share:.1f}%'></i><span>{_percent(share)}</span></div>"
    )


def _image(photo: str, name: str = "") -> str:
    """The photo with this id; the browser asks for it only when it comes into view."""
    return f"<img src='/photo/{photo}' loading='lazy' alt='{html.escape(name)}'>"


def _photos(count: int) -> str:
    return output.count(count, "photo")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _time_left(seconds: float) -> str:
    if seconds < 60:
        return f"about {seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"
