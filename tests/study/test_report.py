"""The page: complete in itself, the same for the same numbers, readable by everyone."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_report import RunOnce, tiny_outcomes, tiny_report

from asgld_study.experiments.declared import EXPERIMENTS
from asgld_study.reproduction import claims, ledger, page, pictures
from asgld_study.reproduction.claims import CLAIMS
from asgld_study.reproduction.pictures import INK, PICTURES, Picture
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.tables import TABLES

_VOID = {"meta", "link", "br", "img", "hr", "input"}


@pytest.fixture(scope="module")
def folder(run_once: RunOnce) -> Path:
    return tiny_report(run_once)


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> Outcomes:
    return tiny_outcomes(folder)


class _Reader(HTMLParser):
    """Collects ids, links and labels; complains about tags that do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.labels: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self._look(tag, dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, dict(attrs))

    def _look(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.ids += [v for k, v in attributes.items() if k == "id" and v]
        self.links += [v for k, v in attributes.items() if k in ("href", "src", "xlink:href") and v]
        if tag == "svg":
            assert attributes["role"] == "img"
            self.labels.append(attributes["aria-label"] or "")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)


@pytest.fixture(scope="module")
def reader(text: str) -> _Reader:
    found = _Reader()
    found.feed(text)
    return found


def test_page_is_balanced_and_its_ids_are_its_own(reader: _Reader) -> None:
    assert reader.unbalanced == []
    assert reader.open == []
    assert [name for name, count in Counter(reader.ids).items() if count > 1] == []


def test_page_needs_no_network_and_its_links_lead_somewhere(
    reader: _Reader, folder: Path, text: str
) -> None:
    for link in reader.links:
        if link.startswith("#"):
            assert link[1:] in reader.ids, link
        elif not link.startswith("data:"):
            assert (folder / link).is_file(), link
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_every_experiment_figure_and_claim_is_there(text: str, reader: _Reader) -> None:
    for experiment in EXPERIMENTS:
        assert f'<section id="{experiment.name}"' in text
        assert f"asgld reproduce --only {experiment.name}" in text
    assert {f"figure-{p.name}" for p in PICTURES} <= set(reader.ids)
    assert {f"claim-{claim.name}" for claim in CLAIMS} <= set(reader.ids)
    assert reader.labels == [p.alt for p in sorted(PICTURES, key=_order)]


def _order(picture: Picture) -> int:
    return [experiment.name for experiment in EXPERIMENTS].index(picture.experiment)


def test_declarations_are_complete() -> None:
    names = [p.name for p in PICTURES]
    assert len(set(names)) == len(names)
    drawn = {p.experiment for p in PICTURES} | {t.experiment for t in TABLES}
    assert drawn == {experiment.name for experiment in EXPERIMENTS}
    for picture in PICTURES:
        assert len(picture.alt) > 30, picture.name
        assert len(picture.caption) > 30, picture.name


def test_pictures_are_in_the_modules_that_the_table_of_claims_names() -> None:
    table = re.findall(r"^ +`(\w+)` .*  (\w[\w, ]+)$", claims.__doc__ or "", re.MULTILINE)
    listed = {module: experiments.split(", ") for module, experiments in table}
    assert sorted(itertools.chain(*listed.values())) == sorted(e.name for e in EXPERIMENTS)
    for module, experiments in listed.items():
        shown = {p.experiment for p in getattr(pictures, module).PICTURES}
        # the special cases are a table alone
        assert shown == set(experiments) - {"identities"}, module
        used = {name for claim in getattr(claims, module).CLAIMS for name in claim.experiments}
        assert used & set(experiments), module


def test_summary_counts_what_the_ledger_says(text: str, folder: Path) -> None:
    rows = json.loads((folder / "ledger.json").read_text())
    counts = Counter(row["verdict"] for row in rows)
    for name in ledger.VERDICTS:
        assert f"<strong>{counts[name]}</strong> {name}</li>" in text


def test_equal_numbers_give_equal_bytes_apart_from_times(outcomes: Outcomes) -> None:
    findings = ledger.judge(CLAIMS, outcomes)
    picture = next(p for p in PICTURES if p.name == "lag")
    pages = []
    for begun, seconds in (("now", 1.0), ("later", 2.0)):
        drawn = {"lag": page.inline_svg(picture, picture.render(outcomes)["svg"].decode())}
        slower = {n: dataclasses.replace(o, seconds=seconds) for n, o in outcomes.items()}
        context = page.Context("tiny", {"torch": "2"}, {"begun": begun})
        pages.append(page.page(slower, findings, drawn, context))
    assert pages[0] != pages[1]
    assert page.without_times(pages[0]) == page.without_times(pages[1])
    assert "seconds" not in page.without_times(pages[0])


def test_figures_are_the_same_bytes_for_the_same_results(outcomes: Outcomes) -> None:
    picture = next(p for p in PICTURES if p.name == "plateau")
    assert picture.render(outcomes) == picture.render(outcomes)


def test_inline_figures_take_the_color_of_the_page(text: str) -> None:
    figures = re.findall(r'<div class="box"[^>]*>(<svg.*?</svg>)', text, re.DOTALL)
    assert len(figures) >= 15
    for figure in figures:
        assert INK not in figure
        assert "currentColor" in figure
        assert not re.search(r"fill: (#ffffff|white)(?!; opacity: 0)", figure)


def test_figures_are_files_for_papers_too(folder: Path) -> None:
    for picture in PICTURES:
        svg, pdf = (folder / "figures" / f"{picture.name}.{k}" for k in ("svg", "pdf"))
        assert svg.read_text().startswith("<?xml")
        assert pdf.read_bytes().startswith(b"%PDF")


def test_tables_are_files_too(folder: Path) -> None:
    with (folder / "tables" / "study.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 15
    with (folder / "ledger.csv").open() as file:
        assert [row["claim"] for row in csv.DictReader(file)] == [c.name for c in CLAIMS]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colors_have_enough_contrast(theme: str) -> None:
    """At least 4.5 : 1, which WCAG asks of text at level AA."""
    style = (Path(page.__file__).parent / "assets" / "report.css").read_text()
    block = ":root {" if theme == "light" else ':root[data-theme="dark"] {'
    rules = style[style.index(block) :]
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", rules[: rules.index("}")]))
    texts = colors.keys() - {"page", "soft", "line", "focus"}
    assert len(texts) == 8
    for name in texts:
        for ground in ("page", "soft"):
            assert _contrast(colors[name], colors[ground]) >= 4.5, (name, ground)
    assert _contrast(colors["focus"], colors["page"]) >= 3.0


def test_both_ways_to_dark_have_the_same_colors() -> None:
    style = (Path(page.__file__).parent / "assets" / "report.css").read_text()
    chosen = style[style.index(':root[data-theme="dark"] {') :]
    asked = style[style.index(':root:not([data-theme="light"]) {') :]
    colors = [re.findall(r"--\w+: #\w+", part[: part.index("}")]) for part in (chosen, asked)]
    assert colors[0] == colors[1]


def _contrast(first: str, second: str) -> float:
    lights = sorted((_luminance(first), _luminance(second)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_from_results_is_escaped(outcomes: Outcomes) -> None:
    broken = dataclasses.replace(outcomes["lag"], errors=["<script>alert(1)</script>"])
    text = page.page({"lag": broken}, [], {}, page.Context("tiny", {}, {}))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_ledger_as_markdown_has_one_row_per_claim(folder: Path) -> None:
    lines = (folder / "paper.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert [row.split(" | ")[0][2:] for row in rows[1:]] == [c.name for c in CLAIMS]
    assert {row.count(" | ") for row in rows} == {4}
