"""The page in a real browser: sorting, opening a prompt, figures, widths, the dark, and a prompt
that is a script. And what the pages of prompts say, without one."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.analyse.analyse import load
from bench.report.page import write_report
from tests.bench.report.synthetic import DECODERS, SCRIPT, write_run

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


@pytest.fixture
def page(written: Path) -> Path:
    return written / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the system's, else playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as api:
        if found is None and not Path(api.chromium.executable_path).is_file():
            pytest.skip(f"no browser is installed (looked for {', '.join(BROWSERS)})")
        started = api.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The page on a laptop's screen, offline, without an error of a script and without a request
    but for files of its own."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 800})
    tab, errors, asked = context.new_page(), [], []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert not errors
    assert not [url for url in asked if not url.startswith((page.parent.as_uri(), "data:"))]
    context.close()


def test_the_answer_is_first_and_tables_sort(opened: Any) -> None:
    tops = opened.evaluate(
        "['.headline', '#table', '#figures'].map(s => document.querySelector(s)"
        ".getBoundingClientRect().top)"
    )
    assert tops == sorted(tops) and tops[0] < 200
    axis = opened.locator(".opening svg text", has_text="output TV, lower is better").first
    box, figure = axis.bounding_box(), opened.locator(".opening svg").first.bounding_box()
    assert box and figure and box["y"] + box["height"] - figure["y"] <= 360, "of a screen of 800"
    table = opened.locator("table.grid").nth(1)
    names = table.locator("tbody tr td:first-child").all_inner_texts
    assert names() == ["ar", "lantern_pp", "lantern_released", "lantern"]
    table.locator("th", has_text="output TV").click()
    opened.locator("th[aria-sort=ascending]").first.wait_for()
    assert names()[1:] == ["lantern_pp", "lantern", "lantern_released"]
    table.locator("th", has_text="output TV").click()
    opened.locator("th[aria-sort=descending]").first.wait_for()
    assert names()[0] == "lantern_released"
    scores = opened.locator("#quality ~ .wide table.grid").first
    for _ in range(2):
        scores.locator("th", has_text="FID").first.click()
    opened.locator("#quality ~ .wide th[aria-sort=descending]").first.wait_for()
    assert scores.locator("tbody tr").last.inner_text().startswith("lantern_chain"), "it has none"


def test_a_prompt_opens_and_a_script_in_it_is_text(opened: Any) -> None:
    links = opened.locator(".prompts a")
    assert not links.first.is_visible(), "the list of all prompts is closed"
    opened.locator("nav a", has_text="Prompts").click()  # opens it
    assert links.nth(1).inner_text() == SCRIPT
    links.nth(1).click()
    assert opened.locator("h1").inner_text() == SCRIPT
    assert SCRIPT in opened.title() and opened.locator("script").count() == 0
    assert {*opened.locator(".card h3").all_inner_texts()} == {made.name for made in DECODERS}
    wide = opened.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert len(wide) == 3 * 10 - 2 and min(wide) > 0  # AR has no map of codes that are not AR's
    opened.locator("nav a", has_text="Next").click()
    assert opened.url.endswith("prompts/2.html")


def test_tables_and_figures_fit_every_screen(browser: Any, opened: Any, page: Path) -> None:
    wide = opened.locator(".plots svg").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().width)"
    )
    assert min(wide) > 400 and opened.evaluate("document.documentElement.scrollWidth") <= 1280
    cut = "[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)"
    assert not opened.evaluate(cut)
    tab = browser.new_page(viewport={"width": 400, "height": 800})
    for address in (page.parent / "prompts" / "0.html", page):
        tab.goto(address.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    for heading in ("speed-up", "verdict"):  # beside the decoder, without scrolling
        cell = tab.locator("table.grid").first.locator("th", has_text=heading)
        box = cell.bounding_box()
        assert box and box["x"] + box["width"] <= 400, heading
    tab.emulate_media(color_scheme="dark")
    light = tab.locator(".plots svg text").first.evaluate("one => getComputedStyle(one).fill")
    assert light == "rgb(221, 221, 221)"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(24, 24, 24)"
    tab.close()


def test_a_prompt_s_page_says_which_codes_are_not_ar_s(page: Path) -> None:
    text = (page.parent / "prompts" / "0.html").read_text(encoding="utf-8")
    assert "1 of 256 codes not AR&#39;s; first: code 40" in text
    assert "Codes differ even between decoders of one law" in text
    assert "NaN logits at code 17" in text  # of the decoder that failed
    assert "255 forwards, 1.00 codes per forward" in text


def test_lost_and_damaged_pictures_are_said_to_be_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", DECODERS[:3], prompts=1)
    kept = "images/{}/quality/0.png".format
    (folder / kept("ar")).unlink()
    (folder / kept("sd_chain")).write_bytes(b"\x89PNG broken")
    text = (write_report(load(folder)) / "index.html").read_text()
    tiles = re.findall(r"<figure>(.*?)<figcaption>(\w+)", text)
    shown = {name: re.sub("<[^>]*>", "", tile) for tile, name in tiles}
    assert shown == {"ar": "image not kept", "sd_chain": "image damaged", "eagle1": ""}
