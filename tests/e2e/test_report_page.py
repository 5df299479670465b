"""The page in a real browser, as a reader has it: from a file, without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from densekd.reports.page import render_page
from densekd.reports.runs import find_runs
from densekd.reports.write import contents_of

from support.run_folders import rewrite, write_run, write_sweep

pytestmark = pytest.mark.slow
EXPERIMENT = """
title = "Three methods"
about = "On digits."
[grid]
"method.name" = ["finetune", "gkd", "rdkd"]
"scenario.steps" = [1, 5]
seed = [1, 2, 3]
[table]
rows = "method.name"
columns = "scenario.steps"
[paper.average_incremental_accuracy]
gkd = [65.73, 64.41]
"""
FIGURES = "(figures) => figures.filter((f) => f.querySelector('svg')?.childElementCount > 3).length"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on many runs, of which some are unfinished, with every kind of figure."""
    out = tmp_path_factory.mktemp("runs")
    points = {}
    for method in ("finetune", "gkd", "rdkd"):
        for steps in (1, 5):
            for seed in (1, 2, 3):
                settings = (f"method.name={method}", f"scenario.steps={steps}", f"seed={seed}")
                point = {"method.name": method, "scenario.steps": steps, "seed": seed}
                folder = write_run(out, *settings)
                points[folder] = point
                noisy = [[1.0, 1.0], [2.0, 2.5 + seed]]
                flat = {"sigmas": [0.0, 0.1], "draws": 2, "images": 9, "losses": noisy}
                rewrite(folder / "flatness.json", flat)
        write_run(out, f"method.name={method}", "scenario.order=7")
        write_run(out, f"method.name={method}", "memory.per_class=5", "scenario.order=7")
    write_run(out, "method.name=icarl", tasks=3)
    write_sweep(out, "three", EXPERIMENT, points)
    facts = {"kind": "compression", "teacher": "a", "student": "b", "accuracy": 0.5}
    losses = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    content = {**facts, "method": "kd", "epochs": losses}
    rewrite(out / "compress-kd" / "result.json", content)
    written = tmp_path_factory.mktemp("page") / "index.html"
    written.write_bytes(render_page(contents_of(find_runs([out]))))
    return written


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Page]:
    """The page, which must neither complain nor ask for anything else."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert complaints == []
    assert {address.partition("#")[0] for address in requests} == {file.as_uri()}


def texts(page: Page, table: str, column: int) -> list[str]:
    """The visible cells of a column."""
    rows = page.locator(f"[data-table={table}] tr[data-methods]:visible")
    return rows.locator(f"td:nth-child({column})").all_inner_texts()


def press(page: Page, table: str, title: str) -> None:
    page.locator(f"[data-table={table}] th button", has_text=title).first.click()


def test_every_figure_is_drawn(opened: Page) -> None:
    figures = opened.locator("figure")
    sections = opened.locator("section:has(figure)").evaluate_all("(all) => all.map((s) => s.id)")
    assert sections == [
        "curves",
        "stability",
        "matrices",
        "memory",
        "orders",
        "flatness",
        "compression",
    ]
    # Those far below are drawn when they come near, which must not move anything.
    assert figures.evaluate_all(FIGURES) < figures.count()
    height = opened.evaluate("document.documentElement.scrollHeight")
    for figure in figures.all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg > *").first.wait_for(state="attached")
    assert figures.evaluate_all(FIGURES) == figures.count()
    assert opened.evaluate("document.documentElement.scrollHeight") == height
    opened.locator("#curves figure svg").first.hover()
    tip = opened.locator("#tip")
    assert tip.is_visible()
    assert "%" in tip.inner_text()
    assert "rdkd" in tip.inner_text()


def test_tables_are_sorted_by_what_is_pressed(opened: Page) -> None:
    for _ in range(2):
        press(opened, "differences", "difference")
    shown = [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts(opened, "differences", 3)]
    one, five = shown[:3], shown[3:6]  # within each protocol
    assert one == sorted(one)
    assert five == sorted(five)
    press(opened, "differences", "difference")
    assert float(texts(opened, "differences", 3)[0].replace("\N{MINUS SIGN}", "-")) == max(one)
    head = opened.locator("[data-table=differences] th[aria-sort=descending]")
    assert head.inner_text() == "difference"
    press(opened, "comparison", "method")
    assert texts(opened, "comparison", 1)[:3] == ["finetune", "gkd", "rdkd"]


def test_unknown_numbers_stay_below(opened: Page) -> None:
    for _ in range(2):
        press(opened, "comparison", "average")
        rows = texts(opened, "comparison", 1)
        last = {texts(opened, "comparison", 2)[i] for i, m in enumerate(rows) if m == "icarl"}
        assert last == {"\N{EN DASH}"}


def test_methods_protocols_and_words_filter(opened: Page) -> None:
    assert "gkd" in texts(opened, "comparison", 1)
    opened.locator("#methods button", has_text="gkd").click()
    assert "gkd" not in texts(opened, "comparison", 1)
    assert texts(opened, "three", 1) == ["finetune", "rdkd"]
    curve = opened.locator("#curves figure").first
    curve.scroll_into_view_if_needed()
    curve.locator(".legend", has_text="rdkd").wait_for()
    assert "gkd" not in curve.inner_text()
    opened.locator("#protocol").select_option(label="digits · T = 1 · 20 exemplars a class")
    assert sorted(texts(opened, "comparison", 1)) == ["finetune", "rdkd"]
    assert opened.locator("#curves figure:visible").count() == 2
    assert opened.locator("#curves h3:visible").all_inner_texts()[0].startswith("digits · T = 1 ")
    opened.locator("#search").fill("rdkd")
    assert texts(opened, "comparison", 1) == ["rdkd"]
    opened.locator("#search").fill("no such thing")
    assert opened.locator("#comparison .nothing").is_visible()
    opened.locator("#clear").click()
    assert "gkd" in texts(opened, "comparison", 1)
    assert opened.locator("#clear").is_hidden()


def test_a_run_opens_its_configuration(opened: Page) -> None:
    link = opened.locator("[data-table=runs] td a").first
    name = link.inner_text()
    link.click()
    details = opened.locator("details[open]")
    assert details.locator(".name").inner_text().startswith(name)
    assert 'source = "digits"' in details.locator("pre").inner_text()


# Holds back the drawing of figures until the mouse is pressed.
LATE = """
let held = [];
addEventListener("mousedown", () => { held?.forEach((draw) => draw()); held = null; }, true);
const Original = IntersectionObserver;
IntersectionObserver = class extends Original {
  constructor(draw, options) {
    super((...entries) => (held ? held.push(() => draw(...entries)) : draw(...entries)), options);
  }
};
"""


def test_a_click_arrives_while_figures_are_drawn(opened: Page) -> None:
    opened.add_init_script(LATE)
    opened.reload()
    link = opened.locator("[data-table=runs] td a").first
    link.scroll_into_view_if_needed()
    link.click(delay=100)
    assert opened.locator("details[open]").count() == 1


def test_an_address_that_names_a_run_opens_it(opened: Page, file: Path) -> None:
    opened.goto(f"{file.as_uri()}#run-2")
    opened.locator("details#run-2[open]").wait_for()
    assert opened.locator("details[open]").count() == 1


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_follow_the_system_and_the_switch(opened: Page) -> None:
    assert background(opened) == "rgb(255, 255, 255)"
    opened.emulate_media(color_scheme="dark")
    dark = background(opened)
    assert dark == "rgb(19, 22, 26)"
    opened.locator("#theme").click()
    assert background(opened) == "rgb(255, 255, 255)"
    opened.reload()
    assert background(opened) == "rgb(255, 255, 255)"
    opened.locator("#theme").click()
    assert background(opened) == dark


def test_a_phone_needs_no_scrolling_sideways(opened: Page) -> None:
    opened.set_viewport_size({"width": 360, "height": 740})
    for figure in opened.locator("figure").all():
        figure.scroll_into_view_if_needed()
    width = opened.evaluate("document.documentElement.scrollWidth")
    assert width == 360
    chart = opened.locator("#curves svg").first.bounding_box()
    assert chart is not None
    assert 240 <= chart["width"] <= 360
