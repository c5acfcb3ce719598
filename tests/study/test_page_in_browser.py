"""The report in a real browser: on a phone and on a screen, in light and dark, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

VIEWS = [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]


@pytest.fixture(scope="module")
def address(report_folder: Path) -> str:
    return f"file://{report_folder / 'report.html'}"


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def opened(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page in one of the views; errors on its console fail the test."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else 0)
    page.on("request", lambda r: complaints.append(r.url) if not _is_local(r.url) else None)
    page.goto(address)
    yield page
    page.close()
    assert complaints == []


def _is_local(url: str) -> bool:
    return url.startswith(("file:", "data:"))


def _luminance(page: Page, selector: str, what: str) -> float:
    color = page.eval_on_selector(selector, f"e => getComputedStyle(e).{what}")
    return sum(float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]) / 3


def test_no_horizontal_scroll(opened: Page) -> None:
    for state in ("as it opens", "with everything open"):
        width = opened.viewport_size["width"]  # type: ignore[index]
        found = opened.evaluate("document.documentElement.scrollWidth")
        assert found <= width, state
        opened.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def test_colors_follow_the_scheme_and_the_button(opened: Page) -> None:
    is_dark = opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for dark in (is_dark, not is_dark):
        ground, ink = (_luminance(opened, "body", w) for w in ("backgroundColor", "color"))
        assert (ground < 128) is dark
        assert (ink > 128) is dark
        # figures are drawn in the color of the text
        figure = "#figure-lag svg text"
        assert abs(_luminance(opened, figure, "fill") - ink) < 30
        opened.get_by_role("button", name="Switch to").click()


def test_figures_are_visible_and_named(opened: Page) -> None:
    figures = opened.locator("figure svg")
    assert figures.count() >= 19
    for i in range(figures.count()):
        box = figures.nth(i).bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 100
    assert opened.get_by_role("img").count() >= 19


def test_links_lead_to_their_places(opened: Page) -> None:
    missing = opened.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.hash.slice(1))"
        ".filter(id => !document.getElementById(id))"
    )
    assert missing == []
    opened.locator("#ledger a", has_text="E1").first.click()
    opened.locator("#claim-E1[open]").wait_for(state="attached", timeout=5000)
    assert opened.locator("#claim-E1 table").is_visible()


def test_tables_sort_by_click_and_by_keyboard(opened: Page) -> None:
    table = opened.locator("#study table").first
    medians = "e => [...e.tBodies[0].rows].map(r => Number(r.cells[3].dataset.value))"
    header = table.locator("th").nth(3)
    before = table.evaluate(medians)
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert table.evaluate(medians) == sorted(before)
    header.get_by_role("button").focus()
    opened.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert table.evaluate(medians) == sorted(before, reverse=True)
    assert table.locator('th[aria-sort="none"]').count() == table.locator("th").count() - 1


def test_first_tab_offers_to_skip_to_the_verdicts(opened: Page) -> None:
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "To the verdicts"
    opened.keyboard.press("Enter")
    assert opened.evaluate("location.hash") == "#ledger"


def test_print_shows_everything_on_white(browser: Browser, address: str, tmp_path: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    page.emulate_media(media="print", color_scheme="dark")
    assert _luminance(page, "body", "backgroundColor") > 250
    assert _luminance(page, "body", "color") < 5
    assert not page.locator("nav").is_visible()
    page.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 100_000
    page.close()


def test_page_is_readable_without_scripts(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#ledger table tbody tr").count() >= 50
    assert page.locator("#study svg").first.is_visible()
    assert not page.locator("#theme").is_visible()
    context.close()
