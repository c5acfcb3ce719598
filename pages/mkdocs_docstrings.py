"""A griffe extension: docstrings, written for readers of the source, become Markdown for the site.

Formulas, roles and simple tables are written as reStructuredText has them, since help() shows them
well that way. Here they turn into what Markdown calls the same.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

from asgld.optim import rule

_RULE = re.compile(r"^ *=+(?: +=+)+ *$")


class DocstringsToMarkdown(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value.replace("{knobs}", rule.describe("    ").lstrip())
            obj.docstring.value = to_markdown(text)


def to_markdown(text: str) -> str:
    r"""Translate formulas, roles, literals and tables.

    >>> to_markdown(":class:`ASGLD` has :math:`D_k` and ``lr``")
    '`ASGLD` has $D_k$ and `lr`'
    """
    text = _tables(text)  # first: what follows changes the width of cells
    text = re.sub(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*| *$))*)", _display, text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    # "alpha: >= 0" must not begin a quotation.
    text = re.sub(r"^( +[\w, ]+: )>", r"\1\\>", text, flags=re.MULTILINE)
    return _escape_stars(_fenced(text))


def _escape_stars(text: str) -> str:
    r"""Stars in the middle of words are products, powers and names, not emphasis.

    >>> _escape_stars("*here* u = 1 / s**2, `s**2` and t**2")
    '*here* u = 1 / s\\*\\*2, `s**2` and t\\*\\*2'
    """
    kept = re.compile(
        r"(```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$"
        r"|^ *\*{1,2}\w+: "  # an argument's name
        r"|(?<![^\s(])\*{1,2}[^*\s](?:[^*\n]*[^*\s])?\*{1,2}(?![\w*])"  # emphasis
        r"|(?<=\n\n)(?: {4}[^\n]*(?:\n|\Z))+)",  # an indented block is code
        re.DOTALL | re.MULTILINE,
    )
    parts = kept.split(text)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "".join(parts)


def _fenced(text: str) -> str:
    """Sessions, from a prompt to the next blank line, as blocks of code."""
    session = re.compile(r"^( *)>>> .*\n(?:.*\S.*(?:\n|\Z))*|^( *)>>> .*\Z", re.MULTILINE)

    def fence(match: re.Match[str]) -> str:
        indent = match[1] or match[2] or ""
        return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"

    return session.sub(fence, text)


def _display(match: re.Match[str]) -> str:
    """A displayed formula; parts that a blank line separates stand below each other."""
    indent, body = match[1], match[2]
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", body.strip())]
    blocks = "\n\n".join(f"{indent}$$\n{indent}{part}\n{indent}$$" for part in parts)
    return f"\n{blocks}\n"


def _tables(text: str) -> str:
    """Tables between rules of equal signs; with two rules there is no row of headings."""
    lines, done = text.split("\n"), list[str]()
    position = 0
    while position < len(lines):
        if not _RULE.match(lines[position]):
            done.append(lines[position])
            position += 1
            continue
        end = position + 1
        ends = list[int]()
        while end < len(lines) and lines[end].strip():
            if _RULE.match(lines[end]):
                ends.append(end)
            end += 1
        if not ends:
            done.append(lines[position])
            position += 1
            continue
        done += _table(lines[position : ends[-1] + 1])
        position = ends[-1] + 1
    return "\n".join(done)


def _table(lines: list[str]) -> list[str]:
    indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
    starts = [match.start() for match in re.finditer(r"=+", lines[0])]
    rules = [n for n, line in enumerate(lines) if _RULE.match(line)]
    rows = list[list[str]]()
    for line in (line for n, line in enumerate(lines) if n not in rules):
        bounds = [*starts[1:], max(len(line), starts[-1] + 1)]
        cells = [line[a:b].strip() for a, b in zip(starts, bounds, strict=True)]
        if cells[0] or not rows:
            rows.append(["" if cell == "\\" else cell for cell in cells])
        else:  # a line that continues the row above
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    if len(rules) == 2:
        rows.insert(0, [""] * len(starts))
    rows.insert(1, ["---"] * len(starts))
    escaped = [[re.sub(r"\\?\|", r"\\|", cell) for cell in row] for row in rows]
    table = "\n".join("| " + " | ".join(row) + " |" for row in escaped)
    return ["", *textwrap.indent(table, indent).split("\n"), ""]
