"""The documentation site: it builds, its links lead somewhere, it needs no network, it fits."""

from __future__ import annotations

import importlib
import mimetypes
import os
import pydoc
import re
import subprocess
import sys
import types
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from helpers import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ADDRESS = "http://site.test/"
# Modules whose __all__ is public.
PUBLIC = ("asgld", "asgld.theory", "asgld.curvature", "asgld.diagnostics", "asgld.methods",
          "asgld.optim", "asgld.oracle", "asgld.problems", "asgld.run")  # fmt: skip


@pytest.fixture(scope="session")
def site(run_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The site, built with warnings as errors."""

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr

    return run_once("site", build)


# ----------------------------------------------------------------------------------------------
# Pages
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page_names_its_audience_first(page: Path) -> None:
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(), flags=re.DOTALL)
    paragraphs = [part for part in re.split(r"\n\s*\n", text.strip()) if part[:4] != "<!--"]
    first = paragraphs[1] if paragraphs[0].startswith("# ") else paragraphs[0]
    assert first.startswith("*For "), f"{page.name} begins with {first[:60]!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_is_run_or_marked(page: Path) -> None:
    # test_documentation.py and test_tutorials.py run python; text is output, console is a shell.
    fences = re.findall(r"^ *```(.*)$", page.read_text(), re.MULTILINE)
    assert set(fences[::2]) <= {"python", "text", "console"}
    assert set(fences[1::2]) <= {""}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"[\w/-]+\.md", navigation))
    tables = (ROOT / "benchmarks" / "tables").glob("*.md")
    appendices = {f"appendix/{page.name}" for page in tables}
    of_the_root = {"changelog.md", "contributing.md"}
    assert listed == appendices | of_the_root | {str(page.relative_to(DOCS)) for page in PAGES}


# ----------------------------------------------------------------------------------------------
# The reference
# ----------------------------------------------------------------------------------------------


def _resolve(path: str) -> Any:
    """The object with this dotted path."""
    found = pydoc.locate(path)
    assert found is not None, f"{path} does not exist"
    return found


def _documented() -> list[str]:
    pages = (DOCS / "api").glob("*.md")
    return [path for page in pages for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    paths = _documented()
    objects = [_resolve(path) for path in paths]
    names = importlib.import_module(module).__all__
    missing = []
    for name in names:
        value = getattr(importlib.import_module(module), name)
        if isinstance(value, types.ModuleType):
            found = any(path.startswith(f"{value.__name__}.") for path in paths)
        else:
            found = any(value is documented for documented in objects)
        if not found:
            missing.append(name)
    assert not missing, f"add `::: {module}.{missing[0]}` to a page in docs/api"


def test_reference_says_something_about_each_name() -> None:
    for path in _documented():
        value = _resolve(path)
        if callable(value) or isinstance(value, types.ModuleType):
            assert (value.__doc__ or "").strip(), f"{path} has no docstring"


def test_docstrings_become_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    to_markdown = importlib.import_module("pages.mkdocs_docstrings").to_markdown
    assert to_markdown(":class:`ASGLD` has :math:`D_k`, ``lr``") == "`ASGLD` has $D_k$, `lr`"
    shown = to_markdown("u = 1 / s**2. The *mean* of s**2")
    assert shown == r"u = 1 / s\*\*2. The *mean* of s\*\*2"
    formula = to_markdown("Rule:\n\n.. math::\n    x = 1,\n        y = 2\n\nThen")
    assert formula.split() == ["Rule:", "$$", "x", "=", "1,", "y", "=", "2", "$$", "Then"]
    session = to_markdown("Text\n\n>>> f(1)\n2\n\nMore")
    assert session == "Text\n\n```pycon\n>>> f(1)\n2\n```\n\nMore"
    table = to_markdown("==  =====\na   b\n==  =====\nx   |y|\n    \\|z\\|\n==  =====")
    assert table.strip().split("\n") == ["| a | b |", "| --- | --- |", r"| x | \|y\| \|z\| |"]


# ----------------------------------------------------------------------------------------------
# Links
# ----------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        wanted = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        if wanted in given:
            self.links.append(given[wanted])


def test_links_lead_to_pages_and_places_that_exist(site: Path) -> None:
    pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 20
    broken = []
    for path, page in pages.items():
        base = urljoin(ADDRESS, str(path.relative_to(site)))
        for link in page.links:
            address, anchor = urldefrag(urljoin(base, link))
            if not address.startswith(ADDRESS):
                # Links out are for the reader to click; nothing of a page is loaded from there.
                continue
            target = site / unquote(address.removeprefix(ADDRESS).partition("?")[0] or "index.html")
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{path.name}: {link}")
                continue
            # What follows # is a place, but for the playground a setting.
            is_place = anchor and target in pages and target.parent.name != "playground"
            if is_place and unquote(anchor) not in pages[target].anchors:
                broken.append(f"{path.name}: {link}, no such place")
    assert not broken, broken


# ----------------------------------------------------------------------------------------------
# In a browser
# ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
def test_pages_are_whole_in_a_browser(site: Path, browser_page: Any) -> None:
    strangers: list[str] = []

    def serve(route: Any) -> None:
        address = route.request.url
        if not address.startswith(ADDRESS):
            strangers.append(address)
            route.abort()
            return
        path = site / unquote(urldefrag(address)[0].removeprefix(ADDRESS).partition("?")[0])
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        if path.is_file():
            route.fulfill(body=path.read_bytes(), content_type=kind)
        else:
            route.fulfill(status=404, body="")

    browser_page.route("**/*", serve)
    for path in sorted(site.rglob("*.html")):
        name = str(path.relative_to(site))
        if name == "404.html":
            continue
        browser_page.goto(ADDRESS + name, wait_until="load")
        for width in (1280, 390):
            browser_page.set_viewport_size({"width": width, "height": 900})
            # Once the page has settled: the theme moves its sidebars after the window.
            wide = browser_page.evaluate(
                """async () => {
                    const wide = () => document.documentElement.scrollWidth - innerWidth;
                    for (let i = 0; i < 60 && wide() > 0; i++)
                        await new Promise(requestAnimationFrame);
                    return wide();
                }"""
            )
            assert wide <= 0, f"{name} scrolls sideways by {wide} px at {width} px"
        seen = browser_page.evaluate(
            """() => ({
                empty: [...document.images].filter((i) => !i.naturalWidth).map((i) => i.src),
                title: document.querySelector("h1")?.innerText,
            })"""
        )
        assert not seen["empty"], f"{name} lacks {seen['empty']}"
        assert seen["title"], f"{name} has no heading"
    assert not strangers, f"pages ask for {strangers}"


@pytest.mark.browser
def test_playground_works_from_a_file(site: Path, browser_page: Any) -> None:
    browser_page.goto((site / "playground" / "index.html").as_uri() + "#chains=3&seed=2")
    browser_page.wait_for_function(
        "() => /step [1-9]/.test(document.querySelector('#pg-numbers').innerText)"
    )
    assert browser_page.input_value("#pg-chains") == "3"
