"""The playground as a page: it answers keys and touch, says what it clamped, and fits."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import ROOT

ADDRESS = "http://playground.test/"


def _hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hook", ROOT / "pages" / "mkdocs_playground.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _serve_page(route: Any) -> None:
    """The playground as the site has it, without the theme around it."""
    content = _hook().on_page_content('<div id="pg-root"></div>')
    html = f"<!doctype html><html lang=en><title>Playground</title><body>{content}"
    route.fulfill(body=html, content_type="text/html; charset=utf-8")


@pytest.fixture
def playground(browser_page: Any) -> Callable[[str], Any]:
    """Open the playground with a link."""
    browser_page.route(ADDRESS + "**", _serve_page)

    def open_page(link: str = "") -> Any:
        browser_page.goto("about:blank")
        browser_page.goto(f"{ADDRESS}#{link}")
        return browser_page

    return open_page


def _step(page: Any) -> int:
    return int(re.search(r"step ([\d,]+)", page.inner_text("#pg-numbers"))[1].replace(",", ""))


def _pause(page: Any) -> None:
    if page.inner_text("#pg-play") == "Pause":
        page.click("#pg-play")


@pytest.mark.browser
def test_page_keeps_the_last_good_formula_running(playground: Callable[[str], Any]) -> None:
    page = playground("formula=x%5E2+-+y%5E2%2F2+%2B+y%5E4%2F4")
    page.fill("#pg-formula", "x^2 + (y")
    assert "never closed" in page.inner_text("#pg-formula-error")
    assert page.inner_text("#pg-underline mark") == "("
    assert page.get_attribute("#pg-formula", "aria-invalid") == "true"
    before = _step(page)
    page.wait_for_function(
        f"() => !document.querySelector('#pg-numbers').innerText.startsWith('step {before} ')"
    )
    assert _step(page) > before
    assert "y%5E4" in page.url
    page.fill("#pg-formula", "x^2 + (y)^2")
    assert page.inner_text("#pg-formula-error") == ""
    assert "%28y%29%5E2" in page.url


@pytest.mark.browser
def test_page_says_what_it_clamped(playground: Callable[[str], Any]) -> None:
    page = playground("chains=99999")
    assert "at most 1000" in page.inner_text("#pg-status")
    assert page.input_value("#pg-chains") == "1000"
    page.fill("#pg-lr", "1e7")
    page.press("#pg-lr", "Enter")
    assert "lr: 10000000 must be at most 10; 10 is used" in page.inner_text("#pg-status")
    _pause(page)
    for _ in range(30):
        page.click("#pg-step")
    assert "1000 of 1000 chains are outside the view" in page.inner_text("#pg-numbers")


@pytest.mark.browser
def test_page_answers_the_keyboard(playground: Callable[[str], Any]) -> None:
    page = playground("")
    page.focus("#pg-field")
    page.keyboard.press("Space")
    assert page.inner_text("#pg-play") == "Play"
    page.keyboard.press("r")
    assert _step(page) == 0
    page.keyboard.press(".")
    page.keyboard.press(".")
    assert _step(page) == 2
    page.keyboard.press("ArrowRight")
    assert "start=0.0475%2C0" in page.url
    page.keyboard.press("-")
    assert "view=0%2C0%2C2.85" in page.url
    page.focus("#pg-map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert (page.input_value("#pg-alpha"), page.input_value("#pg-beta")) == ("0.05", "1.05")
    page.click(".pg-presets >> text=/^ASG$/")
    assert page.input_value("#pg-sigma") == "0"
    assert page.inner_text("#pg-rate-corrected") == "k^-0.5 log k"


@pytest.mark.browser
def test_page_answers_touch(browser: Any) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.route(ADDRESS + "**", _serve_page)
    page.goto(ADDRESS)
    for name in ("field", "map"):
        page.locator(f"#pg-{name}").scroll_into_view_if_needed()
        box = page.locator(f"#pg-{name}").bounding_box()
        page.touchscreen.tap(box["x"] + 0.75 * box["width"], box["y"] + 0.75 * box["height"])
    settings = dict(pair.split("=") for pair in page.url.split("#")[1].split("&"))
    start = [float(part) for part in settings["start"].split("%2C")]
    np.testing.assert_allclose(start, [0.95, -0.95], atol=0.02)
    assert 1.3 < float(settings["alpha"]) < 1.7
    assert 0.3 < float(settings["beta"]) < 0.7
    context.close()


@pytest.mark.browser
def test_shared_link_gives_the_same_run(playground: Callable[[str], Any]) -> None:
    page = playground("landscape=himmelblau&seed=4&chains=20")
    _pause(page)
    page.click("#pg-restart")
    for _ in range(5):
        page.click("#pg-step")
    link, numbers = page.url.split("#")[1], page.inner_text("#pg-numbers")
    again = playground(link)
    _pause(again)
    again.click("#pg-restart")
    for _ in range(5):
        again.click("#pg-step")
    assert again.inner_text("#pg-numbers") == numbers


SCENES = {
    "descent": ("loss", "temperature", "metric"),
    "sparse": ("loss", "temperature", "metric"),
    "sample": ("temperature", "density-x", "density-y"),
    "matrix": ("loss", "temperature", "metric"),
}


@pytest.mark.browser
def test_scenes_open_their_run_and_stay_on_other_landscapes(
    playground: Callable[[str], Any],
) -> None:
    page = playground("")
    expected = {"sparse": "l1=", "sample": "goal=sample", "matrix": "shape=left"}
    for scene, part in expected.items():
        page.click(f"[data-scene={scene}]")
        assert part in page.url
        pressed = page.locator("#pg-scenes [aria-pressed=true]")
        assert pressed.get_attribute("data-scene") == scene
        page.select_option("#pg-landscape", "octopus")
        assert "landscape=octopus" in page.url
        assert part in page.url if scene != "sparse" else page.input_value("#pg-l1") != "0"
    page.fill("#pg-formula", "x^2 + x y + y^2")
    page.click("[data-scene=sample]")
    assert "formula=" in page.url
    assert "goal=sample" in page.url
    page.click("[data-scene=descent]")
    assert "formula=" in page.url
    assert "goal" not in page.url


@pytest.mark.browser
def test_page_gives_up_what_the_proximal_step_cannot_have(playground: Callable[[str], Any]) -> None:
    page = playground("landscape=least-squares&l1=0.8")
    page.select_option("#pg-shape", "left")
    assert page.input_value("#pg-l1") == "0"
    assert "D per coordinate" in page.inner_text("#pg-status")
    page.fill("#pg-l1", "0.5")
    page.press("#pg-l1", "Enter")
    assert page.input_value("#pg-shape") == "coordinate"
    assert page.input_value("#pg-l1") == "0.5"


@pytest.mark.browser
def test_page_says_how_many_chains_stick_and_how_much_mass_is_misplaced(
    playground: Callable[[str], Any],
) -> None:
    # A penalty beyond every slope holds all chains at the origin from the first step on.
    page = playground("landscape=least-squares&l1=1000&lr=1&chains=9")
    _pause(page)
    page.click("#pg-restart")
    page.click("#pg-step")
    assert "x = 0 in 9, y = 0 in 9 of 9 chains" in page.inner_text("#pg-numbers")
    # One step from the saddle the chains are where the target has little mass.
    page = playground("goal=sample&beta=0&sigma=0.1&lr=0.01&chains=50")
    _pause(page)
    page.click("#pg-restart")
    page.click("#pg-step")
    misplaced = re.search(r"(\d+) % of the mass", page.inner_text("#pg-numbers"))
    assert misplaced is not None
    assert int(misplaced[1]) > 90


@pytest.mark.browser
@pytest.mark.parametrize("scene", SCENES)
def test_page_fits_every_width(playground: Callable[[str], Any], scene: str) -> None:
    page = playground("")
    page.click(f"[data-scene={scene}]")
    for width in (390, 768, 1280, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        # The canvas follows the window in one of the next frames.
        page.wait_for_function(
            """() => {
                const field = document.querySelector("#pg-field");
                return Math.abs(field.width - field.clientWidth * devicePixelRatio) <= 2;
            }"""
        )
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        box = page.locator("#pg-field").bounding_box()
        assert 300 <= box["width"] <= width
        shown = page.locator(".pg-plots canvas:visible").evaluate_all("all => all.map(e => e.id)")
        assert set(shown) == {f"pg-{name}" for name in SCENES[scene]}
        # Colors other than the background's: something is drawn on every canvas.
        for name in ("field", "map", *SCENES[scene]):
            drawn = page.evaluate(
                """(id) => {
                    const { width, height } = document.getElementById(id);
                    const context = document.getElementById(id).getContext("2d");
                    const { data } = context.getImageData(0, 0, width, height);
                    return new Set(new Uint32Array(data.buffer)).size;
                }""",
                f"pg-{name}",
            )
            assert drawn > 3, (name, width)
