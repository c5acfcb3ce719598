"""Write measured numbers and tables into the pages, from the results in benchmarks/results.

    python -m pages            compute every marked number and table, rewrite the pages
    python -m pages --check    change nothing; name each mark that shows something else

A mark is an HTML comment, which readers of a page do not see. The mark of a number stands behind
it; the mark of a table stands above it:

    NetworkASGLD is 13.6<!--gain.16c--> % better than AdamW.

    <!-- table: gpt.16 -->

    | optimizer | lr constant | ...

The modules beside this one compute the values: a dictionary of numbers and a dictionary of tables.
Write a new number as 0<!--name-->, compute it under that name, and run the command.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pages import (
    architecture,
    claims,
    knobs,
    matrices,
    minimize,
    proximal,
    sampling,
    speed,
    suite,
    table1,
    theory,
    training,
)
from pages.results import ROOT, Values

FIGURE = ROOT / "docs" / "figures" / "architecture.svg"
APPENDICES = sorted((ROOT / "benchmarks" / "tables").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *APPENDICES]
MARK = re.compile(r"<!--([a-z][\w.-]*)-->")
NUMBER = re.compile(r"((?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)" + MARK.pattern)
TABLE = re.compile(r"<!-- table: ([\w.-]+) -->\n\n((?:\|.*\n)*)")


class Difference(NamedTuple):
    """A mark whose text is not what the results give."""

    page: str
    mark: str
    shown: str
    expected: str

    def __str__(self) -> str:
        return (
            f"{self.page}: {self.mark} shows\n{self.shown}\nbut the results give\n{self.expected}"
        )


def collect() -> Values:
    """All numbers and tables, from the committed results and the code."""
    values = Values({}, {})
    for source in (
        speed, training, suite, matrices, theory, claims, knobs, minimize, proximal, sampling,
        architecture,
    ):  # fmt: skip
        for known, new in zip(values, source.values(), strict=True):
            twice = known.keys() & new.keys()
            assert not twice, f"two modules compute {twice}"
            known.update(new)
    return values


def rewrite(page: str, text: str, values: Values) -> tuple[str, list[Difference], set[str]]:
    """The text of a page with the values in their places, what differed, and the marks found."""
    differences, found = [], set[str]()

    def replace(mark: str, shown: str, known: dict[str, str]) -> str:
        found.add(mark)
        expected = known.get(mark, f"nothing: no module of pages/ computes {mark!r}")
        if shown != expected:
            differences.append(Difference(page, mark, shown, expected))
        return known.get(mark, shown)

    new = TABLE.sub(
        lambda m: f"<!-- table: {m[1]} -->\n\n{replace(m[1], m[2], values.tables)}", text
    )
    new = NUMBER.sub(lambda m: f"{replace(m[2], m[1], values.numbers)}<!--{m[2]}-->", new)
    lost = set(MARK.findall(text)) - found
    differences += [Difference(page, mark, "no number", "a number before it") for mark in lost]
    return new, differences, found


def write(*, is_check: bool = False) -> list[Difference]:
    """Rewrite the pages, the files that are made as a whole too; return what differed."""
    values, differences, found = collect(), list[Difference](), set[str]()
    for path in PAGES:
        page, text = str(path.relative_to(ROOT)), path.read_text()
        new, here, marks = rewrite(page, text, values)
        differences += here
        found |= marks
        if new != text and not is_check:
            path.write_text(new)
    unused = (values.numbers.keys() | values.tables.keys()) - found
    differences += [Difference("no page", mark, "nothing", "a mark") for mark in sorted(unused)]
    for path, whole in {FIGURE: architecture.picture(), **table1.files()}.items():
        if not path.exists() or path.read_text() != whole:
            name = str(path.relative_to(ROOT))
            differences.append(Difference(name, "the file", "another", "one made anew"))
            if not is_check:
                path.write_text(whole)
    return differences
