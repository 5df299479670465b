import re
from dataclasses import replace
from pathlib import Path

from densekd.jobs.events import JobProgress
from densekd.model.frozen.review import Confusion, Suspect
from densekd.model.model import Guess, Prediction
from densekd.model.store import Accuracy, ClassChange, Edit, HistoryEntry, Update
from densekd.ui import markup
from densekd.ui.predictor import PhotoPrediction
from densekd.ui.uploads import Upload

PHOTO = Upload((), "1.png", Path("0"))
EVIL = "<img src=x onerror=alert(1)>'\""


def update(before: bool = True) -> Update:
    changes = (
        ClassChange("cat", 4, 0.5 if before else None, 0.25),
        ClassChange(EVIL, 0, None, None),
    )
    old = Accuracy(None, 0.5, 0.5) if before else None
    return Update(1, (EVIL,), (), 7, 3, old, Accuracy(None, 0.25, 0.25), changes, 1.0)


def test_names_are_escaped() -> None:
    entry = HistoryEntry(1, 0, "2026-01-01T00:00:00+00:00", True, update())
    photo = Upload((), EVIL, Path("0"))
    shown = [
        markup.model_header(EVIL, entry),
        markup.basket([photo]),
        markup.basket([Upload((EVIL,), "1.png", Path("0"))]),
        markup.prediction_cards([PhotoPrediction(photo)]),
        markup.prediction_cards([PhotoPrediction(PHOTO, problem=EVIL)]),
        markup.prediction_cards([PhotoPrediction(PHOTO, Prediction([Guess(EVIL, 0.5)]))]),
        markup.confusions([Confusion(EVIL, "cat", 5, (b"",))], 5),
        markup.confusions([Confusion("cat", EVIL, 5, (b"",))], 5),
        markup.suspects([Suspect(b"", EVIL, "cat", b"")]),
        markup.suspects([Suspect(b"", "cat", EVIL, b"")]),
        markup.history_table([entry]),
        markup.update_result(update()),
        markup.alert(EVIL),
        markup.job_progress(JobProgress(EVIL), []),
        markup.job_progress(JobProgress("Testing"), [EVIL]),
    ]
    for each in shown:
        assert "&lt;img src=x onerror=alert(1)&gt;&#x27;&quot;" in each
        assert "<img src=x" not in each


def test_a_chart_shows_before_and_after() -> None:
    chart = markup.accuracy_chart(update())
    assert re.findall(r"class='kd-bar (\w+)'.*?--share:([\d.]+)%", chart) == [
        ("before", "50.0"),
        ("after", "25.0"),
    ]
    assert chart.count("kd-new") == 1
    assert "4 photos tested" in chart
    assert "too few photos to test" in chart
    assert "before" not in markup.accuracy_chart(update(before=False))


def test_history_has_the_newest_first_and_a_button_for_each_other_state() -> None:
    when = "2026-01-01T00:00:00+00:00"
    entries = [HistoryEntry(step, parent, when, step == 1, update()) for step, parent in _STEPS]
    rows = re.findall(
        r"<tr.*?<td>(.*?)</td>.*?</tr>", markup.history_table(entries).partition("<tbody>")[2]
    )
    assert rows == ["2 (after 0)", "1", "0"]
    assert re.findall(r"data-step='(\d)'", markup.history_table(entries)) == ["2", "0"]


def test_a_step_of_which_little_is_known_is_listed() -> None:
    erased = replace(update(), learned=(), replayed=())
    for when in ("None", "0001-01-01T00:00:00+14:00"):  # as in a forged model
        shown = markup.history_table([HistoryEntry(0, None, when, True, erased)])
        assert f"<td>{when}</td>" in shown
        assert "learned (erased)" in shown
    assert "learned (erased) from" in markup.update_result(erased)


def test_progress_shows_the_time_left() -> None:
    assert "aria-valuenow" not in markup.job_progress(JobProgress("Testing", None), [])
    half = markup.job_progress(JobProgress("Learning", 0.5, 90.0), [])
    assert "aria-valuenow='50'" in half
    assert "Learning, about 2 min left" in half
    assert "about 7 s left" in markup.job_progress(JobProgress("Learning", 0.5, 7.2), [])
    assert "about 2.0 h left" in markup.job_progress(JobProgress("Learning", 0.5, 7200.0), [])


def test_an_unknown_photo_is_none_of_the_classes() -> None:
    guesses = [Guess("cat", 0.9), Guess("dog", 0.1)]
    known = markup.prediction_cards([PhotoPrediction(PHOTO, Prediction(guesses))])
    unknown = markup.prediction_cards([PhotoPrediction(PHOTO, Prediction(guesses, known=False))])
    assert "None of these" in unknown
    assert "None of these" not in known
    assert all("data-teach='0'" in shown for shown in (known, unknown))


def test_an_update_says_what_it_did() -> None:
    more = replace(update(), learned=(), replayed=("cat",))
    assert "learned more of cat from 7 photos." in markup.update_result(more)
    both = replace(update(), learned=("dog",), replayed=("cat",))
    assert "learned dog, and more of cat, from 7 photos." in markup.update_result(both)
    entry = HistoryEntry(1, 0, "2026-01-01T00:00:00+00:00", True, both)
    assert "<td>learned dog, and more of cat</td>" in markup.history_table([entry])
    edited = replace(more, edit=Edit("renamed", ("cat",), 7, EVIL))
    assert "renamed cat to &lt;img" in markup.update_result(edited)


def test_mistakes_are_counted() -> None:
    assert "No test photos yet" in markup.confusions([], 0)
    assert (
        "1 photo that it did not learn from, and misclassified none of them"
        in markup.confusions([], 1)
    )
    found = [Confusion("cat", "dog", 9, (b"1", b"2")), Confusion("dog", "cat", 3, (b"3",))]
    shown = markup.confusions(found, 12)
    assert "12 photos that it did not learn from, and misclassified 3 of them" in shown
    assert "2 of 9 photos" in shown
    assert shown.count("<img") == 3


def test_long_lists_of_names_are_cut() -> None:
    for names, shown in (("abcdefg", "f, g from"), ("abcdefgh", "e, f and 2 more from")):
        assert shown in markup.update_result(replace(update(), learned=tuple(names)))


_STEPS = ((0, None), (1, 0), (2, 0))
