"""The page's photos in a real browser: thumbnails, the camera, two windows, a reload."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from densekd.model.frozen.model import FrozenModel
from densekd.model.model import Model
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.ui_page import classes, drop, opened, photos, served, set_epochs, tab

NAME = "Class name of the photos that you add"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def new_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a model that was taught nothing before this file's tests."""
    folder = tmp_path_factory.mktemp("new")
    with served(folder / "model", folder / "log") as address:
        yield address


def test_a_computer_without_a_camera_is_told_so(new_model: str, browser: Browser) -> None:
    with opened(browser, new_model) as page:
        page.context.clear_permissions()
        lesson = tab(page, "Teach")
        lesson.get_by_role("button", name="Camera", exact=True).click()
        expect(lesson.get_by_role("status")).to_contain_text("doesn't allow the camera")
        expect(lesson.locator("video")).to_be_hidden()


def test_two_windows_share_photos_and_an_update(
    new_model: str, tmp_path: Path, browser: Browser
) -> None:
    source = photos(tmp_path / "photos", "red", "green", count=6)
    with opened(browser, new_model) as page:
        lesson = tab(page, "Teach")
        drop(lesson, source)
        expect(lesson.locator(".kd-tiles li")).to_have_count(12)
        # The browser has loaded the thumbnail: it knows its size.
        shown = lesson.locator(".kd-tiles img").first
        page.wait_for_function("image => image.naturalWidth === 16", arg=shown.element_handle())
        for _ in range(2):  # at once, without waiting for the server
            lesson.get_by_role("button", name="Remove IMG").first.click()
        expect(classes(lesson)).to_have_text(["green", "4 photos", "red", "6 photos"])
        lesson.get_by_role("button", name="Select IMG").nth(4).click()
        expect(lesson.get_by_text("1 photo selected")).to_be_visible()
        lesson.get_by_label("Move to class").fill("blue")
        lesson.get_by_role("button", name="Move to this class").click()
        expected = ["blue", "1 photo", "green", "4 photos", "red", "5 photos"]
        expect(classes(lesson)).to_have_text(expected)

        other = page.context.new_page()
        other.goto(new_model)
        second = tab(other, "Teach")
        expect(classes(second)).to_have_text(expected)
        second.locator("section").first.get_by_role("button", name="Remove all").click()
        expect(classes(lesson)).to_have_text(expected[2:])  # without a click

        lesson.get_by_role("button", name="Teach").click()
        expect(second.locator(".kd-class")).to_have_count(2)  # without a click
        expect(other.get_by_text("2 classes: green, red.")).to_be_visible()
        page.reload()
        expect(tab(page, "Teach").get_by_text("Step 0 learned green, red")).to_be_visible()
        expect(page.locator(".kd-basket")).to_have_count(0)


def test_the_camera_takes_photos_to_teach_and_to_look_at(tmp_path: Path, browser: Browser) -> None:
    model = tmp_path / "model"
    source = photos(tmp_path / "photos", "red", "blue", count=6)
    teach_model(model, source, TeachOptions(network="resnet8", epochs=1))
    with served(model, tmp_path / "log") as address, opened(browser, address) as page:
        lesson = tab(page, "Teach")
        lesson.get_by_label(NAME).fill("test picture")
        lesson.get_by_role("button", name="Camera", exact=True).click()
        video = lesson.locator("video")
        playing = "video => video.videoWidth > 0"
        page.wait_for_function(playing, arg=video.element_handle())
        for taken in ("1 photo", "2 photos", "3 photos"):
            lesson.get_by_role("button", name="Take a photo").click()
            expect(classes(lesson)).to_have_text(["test picture", taken])
            # The same frame again would be the same photo, which is taken once.
            page.evaluate(
                "async video => { for (let i = 0; i < 5; i++)"
                " await new Promise(done => video.requestVideoFrameCallback(done)); }",
                video.element_handle(),
            )
        page.reload()
        classify = tab(page, "Classify")
        classify.get_by_role("button", name="Camera", exact=True).click()
        video = classify.locator("video").element_handle()
        page.wait_for_function(playing, arg=video)
        classify.get_by_role("button", name="Take a photo").click()
        expect(classify.locator(".kd-card .kd-bar")).to_have_count(2)
        classify.get_by_role("button", name="Teach this photo").click()

        lesson = page.get_by_role("tabpanel").filter(visible=True)
        expect(classes(lesson)).to_have_text(
            ["No class yet", "1 photo", "test picture", "3 photos"]
        )
        page.wait_for_function("video => video.srcObject === null", arg=video)  # it is off
        lesson.locator("section").last.get_by_role("button", name="Add more").click()
        expect(lesson.get_by_label(NAME)).to_have_value("test picture")
        lesson.get_by_label(NAME).press("Enter")
        expect(classes(lesson)).to_have_text(["test picture", "4 photos"])
        set_epochs(page, lesson, "1")
        lesson.get_by_role("button", name="Teach").click()
        expect(page.get_by_text("3 classes: blue, red, test picture.")).to_be_visible()
        expect(tab(page, "Classify").locator(".kd-card .kd-bar")).to_have_count(3)
    assert Model.open(model).classes == ("blue", "red", "test picture")


def test_mistakes_are_shown_and_corrected(tmp_path: Path, browser: Browser) -> None:
    model = tmp_path / "model"
    source = photos(tmp_path / "photos", "red", "green", "blue")
    for file in sorted(photos(tmp_path / "more", "green", count=14).glob("green/*"))[-2:]:
        shutil.copy(file, source / "red" / f"wrong {file.name}")
    pattern = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
    Image.fromarray(pattern).resize((99, 99)).save(tmp_path / "pattern.png")
    teach_model(model, source, TeachOptions())
    with served(model, tmp_path / "log") as address, opened(browser, address) as page:
        mistakes = tab(page, "Mistakes")
        expect(mistakes.get_by_text("that it did not learn from")).to_be_visible()
        suspects = mistakes.locator(".kd-suspects li")
        expect(suspects).to_have_text(["Taught as red, looks like green"] * 2)
        image = suspects.locator("img").first.element_handle()
        page.wait_for_function("image => image.naturalWidth > 0", arg=image)
        for i in range(2):
            suspects.get_by_role("button", name="Select photo").nth(i).click()
        mistakes.get_by_role("button", name="Move to the class they look like").click()
        expect(suspects).to_have_count(0)
        expect(tab(page, "History").get_by_text("Step 1 corrected")).to_be_visible()

        classify = tab(page, "Classify")
        drop(classify, [tmp_path / "pattern.png"])
        expect(classify.get_by_text("None of these.")).to_be_visible()
        classify.get_by_role("button", name="Teach this photo").click()
        lesson = page.get_by_role("tabpanel").filter(visible=True)
        lesson.get_by_label(NAME).fill("pattern")
        lesson.get_by_role("button", name="Teach").click()
        expect(lesson.get_by_text("Step 2 learned pattern from 1 photo.")).to_be_visible()
        classify = tab(page, "Classify")
        expect(classify.locator(".kd-bar span:first-child").first).to_have_text("pattern")
    assert [count for count in FrozenModel.open(model).training_counts() if count == 1] == [1]
