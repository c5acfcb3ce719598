"""The page: complete in itself, the same for the same numbers, readable by everyone."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from asgld.theory.published import VERDICTS
from asgld_study import page
from asgld_study.drawing import INK
from asgld_study.engine import Outcomes
from asgld_study.judge import judge_claims
from asgld_study.page import Contents, markdown_table
from asgld_study.paper import CLAIMS, EXPERIMENTS, PICTURES

_VOID = {"meta", "link", "br", "img", "hr", "input"}


@pytest.fixture(scope="module")
def text(report_folder: Path) -> str:
    return (report_folder / "report.html").read_text()


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
    reader: _Reader, report_folder: Path, text: str
) -> None:
    for link in reader.links:
        if link.startswith("#"):
            assert link[1:] in reader.ids, link
        elif not link.startswith("data:"):
            assert (report_folder / link).is_file(), link
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_every_experiment_figure_and_claim_is_there(text: str, reader: _Reader) -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert {*names, *(f"figure-{p.name}" for p in PICTURES)} <= set(reader.ids)
    assert {f"claim-{claim.name}" for claim in CLAIMS} <= set(reader.ids)
    in_order = sorted(PICTURES, key=lambda p: names.index(p.experiment))
    assert reader.labels == [p.alt for p in in_order]
    for name in names:
        assert f"--only {name}" in text


def test_files_beside_the_page_agree_with_it(text: str, report_folder: Path) -> None:
    rows = json.loads((report_folder / "ledger.json").read_text())
    counts = Counter(row["verdict"] for row in rows)
    for name in VERDICTS:
        assert f"<strong>{counts[name]}</strong> {name}</li>" in text
    with (report_folder / "ledger.csv").open() as file:
        assert [row["claim"] for row in csv.DictReader(file)] == [c.name for c in CLAIMS]
    with (report_folder / "tables" / "study.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 15
    for picture in PICTURES:
        svg, pdf = (report_folder / "figures" / f"{picture.name}.{k}" for k in ("svg", "pdf"))
        assert svg.read_text().startswith("<?xml")
        assert pdf.read_bytes().startswith(b"%PDF")


def test_equal_numbers_give_equal_bytes_apart_from_times(measured: Outcomes) -> None:
    pages = []
    for begun, seconds in (("now", 1.0), ("later", 2.0)):
        slower = {n: dataclasses.replace(o, seconds=seconds) for n, o in measured.items()}
        told = Contents("", "", slower, judge_claims(CLAIMS, slower), times={"begun": begun})
        pages.append(page.render(told, {}))
    assert pages[0] != pages[1]
    assert page.without_times(pages[0]) == page.without_times(pages[1])
    assert "seconds" not in page.without_times(pages[0])


def test_inline_figures_take_the_color_of_the_page(text: str) -> None:
    figures = re.findall(r'<div class="box"[^>]*>(<svg.*?</svg>)', text, re.DOTALL)
    assert len(figures) >= 15
    for figure in figures:
        assert INK not in figure
        assert "currentColor" in figure
        assert not re.search(r"fill: (#ffffff|white)(?!; opacity: 0)", figure)


def test_a_page_of_one_topic_says_nothing_of_others(measured: Outcomes, tmp_path: Path) -> None:
    few = {"plateau": measured["plateau"]}
    pictures = [p for p in PICTURES if p.experiment == "plateau"]
    told = Contents("Floors", "", few, judge_claims(CLAIMS, few), pictures)
    found = page.write(told, tmp_path).read_text()
    assert found.count("<section id=") == 4  # the ledger, the experiment, the numbers, the rest
    assert "claim-R9" in found
    assert "claim-R8" not in found


def test_failures_are_shown_and_text_from_results_is_escaped(
    outcomes: Outcomes, tmp_path: Path
) -> None:
    broken = dataclasses.replace(outcomes["lag"], values=[], errors=["<script>alert(1)</script>"])
    pictures = [p for p in PICTURES if p.name == "lag"]
    told = Contents("", "", {"lag": broken}, [], pictures)
    text = page.write(told, tmp_path).read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert text.count('class="failed"') == 3  # on top, of the experiment, of its figure


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


def test_markdown_tables_have_equal_rows_and_readable_numbers() -> None:
    rows = [
        {"a_b": 1.0, "c": math.inf, "d": "x|y", "e": math.nan, "f": True},
        {"a_b": 0.12345, "c": 1234.5, "d": "", "e": math.nan},
    ]
    lines = markdown_table(rows).splitlines()
    assert lines[0] == "| a b | c | d | f |"
    assert lines[2] == r"| 1 | never | x\|y | yes |"
    assert lines[3] == "| 0.123 | 1.23e+03 |  |  |"
    assert markdown_table(rows, ("c", "d"), drop=("d",)).splitlines()[0] == "| c |"
    assert page.markdown(" a ", "b") == "a\n\nb\n"
