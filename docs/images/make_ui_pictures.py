"""Make the pictures of the page: ``python docs/images/make_ui_pictures.py FOLDER``.

FOLDER has ``train`` and ``test`` with sub-folders of photos for the classes below. The page is the
real one, in Chromium, with a new model.
"""

import argparse
import io
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, expect, sync_playwright

FIRST, SECOND = ("dress", "outwear", "pants", "shoes"), ("hat", "skirt")
PHOTOS = 40  # of each class
LOOKED_AT = ("dress/0000.jpg", "shoes/0003.jpg", "hat/0003.jpg")
HERE, MILLISECONDS = Path(__file__).parent, 600_000


def copied(source: Path, names: tuple[str, ...], to: Path) -> Path:
    """The first photos of each class."""
    for name in names:
        (to / name).mkdir(parents=True)
        for file in sorted((source / name).iterdir())[:PHOTOS]:
            shutil.copy(file, to / name)
    return to


def tab(page: Page, name: str) -> Locator:
    """What is on a tab, which is opened."""
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def take(page: Page, name: str, height: int) -> None:
    """Save what the window shows."""
    page.set_viewport_size({"width": 820, "height": height})
    page.wait_for_timeout(3000)  # until its photos are loaded, and bars have grown
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.quantize(dither=Image.Dither.NONE).save(HERE / f"ui-{name}.png", optimize=True)


def take_all(page: Page, new: Path, looked_at: list[Path]) -> None:
    """Classify, teach, and go through the other tabs."""
    expect(page.get_by_text(f"{len(FIRST)} classes:")).to_be_visible()
    classify = tab(page, "Classify")
    classify.locator("input[data-kind=images]").set_input_files(looked_at)
    expect(classify.locator(".kd-card")).to_have_count(len(looked_at))
    expect(classify.get_by_role("button", name="Teach this photo")).to_have_count(len(looked_at))
    take(page, "classify", 850)
    teach = tab(page, "Teach")
    teach.locator("input[data-kind=folder]").set_input_files(new)
    expect(teach.locator(".kd-tiles li")).to_have_count(PHOTOS * len(SECOND))
    take(page, "teach", 900)
    teach.get_by_role("button", name="Teach").click()
    expect(teach.get_by_text("Step 1 learned")).to_be_visible()
    teach.get_by_text("Step 1 learned").scroll_into_view_if_needed()
    take(page, "learned", 940)
    mistakes = tab(page, "Mistakes")
    expect(mistakes.get_by_text("that it did not learn from")).to_be_visible()
    take(page, "mistakes", 940)
    tab(page, "History")
    take(page, "history", 800)


def main() -> None:
    """Teach a model, open its page, and make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder, densekd = parser.parse_args().folder, [sys.executable, "-m", "densekd"]
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        model = Path(place, "clothes")
        first = copied(folder / "train", FIRST, Path(place, "photos"))
        subprocess.run([*densekd, "learn", model, first, "--quiet"], check=True)
        new = copied(folder / "train", SECOND, Path(place, "new-photos"))
        looked_at = [folder / "test" / name for name in LOOKED_AT]
        command = [*densekd, "ui", model, "--port", "0", "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            line = server.stdout.readline() if server.stdout else ""
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert address, line
            try:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = browser.new_page(viewport={"width": 820, "height": 1000})
                page.set_default_timeout(MILLISECONDS)
                expect.set_options(timeout=MILLISECONDS)
                page.goto(address[0])
                take_all(page, new, looked_at)
                browser.close()
            finally:
                server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
