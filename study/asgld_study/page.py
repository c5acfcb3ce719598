"""The one page writer: a report as one HTML page that needs nothing else, and Markdown pages.

Equal outcomes give equal bytes. What differs between two runs of the same numbers, dates and times,
stands between the two `VOLATILE` comments and nowhere else.
"""

from __future__ import annotations

import html
import json
import math
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import asgld
from asgld.run.files import as_csv, format_number, write_bytes, write_text
from asgld.theory import item
from asgld.theory.published import VERDICTS
from asgld_study.drawing import INK, Picture
from asgld_study.engine import Measured, Outcomes, Progress, in_parallel, paragraphs
from asgld_study.judge import Finding, as_row, tally

Row = dict[str, Any]
VOLATILE = ("<!-- times -->", "<!-- /times -->")
_ASSETS = Path(__file__).parent / "assets"
# verdict -> its class in the style sheet, and its meaning
_CLASSES = {
    "holds": ("holds", "all checks pass"),
    "consistent": ("consistent", "no check fails, and no number reaches its upper bound"),
    "holds with correction": ("correction", "its core does, a detail does not"),
    "not supported": ("unsupported", "the numbers leave it open"),
    "refuted": ("refuted", "a core check fails"),
    "not testable": ("untestable", "no number speaks for or against it"),
}
_LONG = 24  # characters of a cell beyond which it gets a wide column
_FOLDED = 20  # rows beyond which a table is folded


@dataclass(frozen=True)
class DataTable:
    """A table of an experiment: its name, its heading and how its rows are made."""

    name: str
    experiment: str
    caption: str
    rows: Callable[[Outcomes], list[Row]]

    def filled(self, outcomes: Outcomes) -> list[Row]:
        """The rows; none where the experiment is too incomplete to make them."""
        try:
            return self.rows(outcomes)
        except Exception:  # the experiment says by itself what failed
            return []


def table(name: str) -> Callable[[Callable[[Outcomes], list[Row]]], DataTable]:
    """Turn the function that makes the rows into the table; its docstring is the heading."""
    return lambda rows: DataTable(name, name, paragraphs(rows)[0], rows)


@dataclass(frozen=True)
class Contents:
    """What a page tells, of any topics."""

    title: str
    intro: str  # the first paragraph, as HTML
    outcomes: Outcomes
    findings: Sequence[Finding] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[DataTable] = ()
    command: str = "asgld reproduce --only {}"  # repeats one experiment, whose name replaces {}
    about: str = ""  # a paragraph on the settings, as HTML
    settings: Mapping[str, str] = field(default_factory=dict)  # equal for equal runs
    environment: Mapping[str, str] = field(default_factory=dict)  # equal for equal machines
    times: Mapping[str, str] = field(default_factory=dict)  # different in every run


def environment() -> dict[str, str]:
    """What the numbers may depend on."""
    optimizer = asgld.ASGLD([torch.zeros(2, dtype=torch.float64)])
    return {
        "asgld": asgld.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(terse=True),
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "step": f"{optimizer.backends[0].name} ({optimizer.backends[0].reason})",
    }


# ------------------------------------------------------------------------------------ files


def write(told: Contents, out: Path, *, jobs: int = 1, report: Progress | None = None) -> Path:
    """Write the page, figures, tables and ledger under `out`; return the path of the page."""
    chosen = [p for p in told.pictures if p.experiment in told.outcomes]
    drawings = {}
    for done, (i, drawn) in enumerate(
        in_parallel(_draw, [(p, _read_by(p, told.outcomes)) for p in chosen], jobs), start=1
    ):
        name = chosen[i].name
        if "error" in drawn:
            drawings[name] = _failed(f"Could not be drawn: <code>{_text(drawn['error'])}</code>")
        else:
            for kind, content in drawn.items():
                write_bytes(out / "figures" / f"{name}.{kind}", content)
            drawings[name] = inline_svg(chosen[i], drawn["svg"].decode())
        if report is not None:
            report(done, len(chosen), f"figure {name}")
    for table in told.tables:
        if table.experiment in told.outcomes and (rows := table.filled(told.outcomes)):
            write_text(out / "tables" / f"{table.name}.csv", as_csv(rows))
    if rows := [as_row(finding) for finding in told.findings]:
        write_text(out / "ledger.csv", as_csv(rows))
        write_text(out / "ledger.json", json.dumps(rows, indent=1) + "\n")
    path = out / "report.html"
    write_text(path, render(told, drawings))
    return path


def _read_by(picture: Picture, outcomes: Outcomes) -> Outcomes:
    needed = (picture.experiment, *picture.also)
    return {name: outcomes[name] for name in needed if name in outcomes}


def _draw(work: tuple[Picture, Outcomes]) -> dict[str, Any]:
    """SVG and PDF; the reason where it cannot be drawn, as for an incomplete experiment."""
    try:
        return dict(work[0].render(work[1]))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


# ------------------------------------------------------------------------------------ the page


def render(told: Contents, drawings: Mapping[str, str]) -> str:
    """The whole page; `drawings` are the figures as SVG, by name."""
    frame, style, script = (
        (_ASSETS / name).read_text() for name in ("report.html", "report.css", "report.js")
    )
    cards = (
        f'<li class="{_CLASSES[name][0]}"><strong>{count}</strong> {name}</li>'
        for name, count in tally(told.findings).items()
    )
    links = (
        f'<li><a href="#{name}">{_text(outcome.experiment.title)}</a></li>'
        for name, outcome in told.outcomes.items()
    )
    failed = [name for name, outcome in told.outcomes.items() if outcome.errors]
    warning = f"Incomplete: {', '.join(failed)}. The claims that rest on it say so."
    details = "\n".join(map(_detail, told.findings))
    sections = (
        _ledger(told.findings),
        *(_experiment(outcome, told, drawings) for outcome in told.outcomes.values()),
        _section("details", "Numbers behind each verdict", details),
        _about(told),
    )
    return frame.format(
        title=_text(told.title),
        style=style,
        script=script,
        intro=told.intro,
        warning=_failed(warning) if failed else "",
        cards="\n".join(cards),
        links="\n".join(links),
        sections="\n".join(sections),
    )


def _ledger(findings: Sequence[Finding]) -> str:
    rows = [
        [
            _cell(f'<a href="#claim-{f.claim.name}">{f.claim.name}</a>', value=f.claim.name),
            _cell(_verdict(f.verdict), value=f.verdict),
            _cell(_text(f.claim.says), "says"),
            _cell(_text(f.headline), "says"),
            _cell(_text(f.claim.where)),
        ]
        for f in findings
    ]
    names = ("claim", "verdict", "says", "decided by", "where")
    meanings = "\n".join(f"{_verdict(name)}: {_CLASSES[name][1]}." for name in VERDICTS)
    return _section(
        "ledger",
        "Claims and verdicts",
        f"""<p>Every verdict is computed from the
checks under <a href="#details">Numbers behind each verdict</a>.
{meanings}</p>
{_table(names, rows, "Select a heading to sort.")}""",
    )


def _detail(finding: Finding) -> str:
    claim = finding.claim
    rows = [
        [
            _cell(_text(check.says), "says"),
            _cell(_text(check.number), "n", check.value),
            _cell(_text(check.asked)),
            _cell(check.answer),
            _cell("core" if check.core else "detail"),
        ]
        for check in finding.checks
    ]
    names = ("number", "measured [95 %]", "asked", "so", "kind")
    parts = []
    if claim.note and finding.verdict != "holds":
        parts.append(f"<p><strong>Instead:</strong> {_text(claim.note)}</p>")
    if claim.item:
        proved = item(claim.item)
        parts.append(
            f"<p><strong>By proof</strong> ({_text(proved.name)} as a whole): "
            f"{_verdict(proved.verdict)}. {_text(proved.reason)}</p>"
        )
    parts.append(_table(names, rows) if rows else f"<p>{_text(finding.failure)}</p>")
    links = ", ".join(f'<a href="#{name}">{name}</a>' for name in claim.experiments)
    body = "\n".join(parts)
    return f"""<details id="claim-{claim.name}">
<summary><strong>{claim.name}</strong> {_text(claim.says)} {_verdict(finding.verdict)}</summary>
<p class="muted">{_text(claim.where)}. Experiments: {links}.</p>
{body}
</details>"""


def _experiment(outcome: Measured, told: Contents, drawings: Mapping[str, str]) -> str:
    experiment = outcome.experiment
    command = told.command.format(experiment.name)
    parts = [f"<p>{_text(experiment.question)}</p>"]
    if outcome.errors:
        parts.append(
            _failed(
                f"{len(outcome.errors)} of its tasks failed; the first: "
                f"<code>{_text(outcome.errors[0])}</code>"
            )
        )
    for picture in told.pictures:
        if picture.experiment == experiment.name and picture.name in drawings:
            parts.append(_figure(picture, drawings[picture.name], command))
    for table in told.tables:
        if table.experiment == experiment.name and (rows := table.filled(told.outcomes)):
            parts.append(_data_table(table, rows))
    parts.append(f'<p class="muted">Repeat it: <code>{command}</code></p>')
    return _section(experiment.name, experiment.title, "\n".join(parts))


def _about(told: Contents) -> str:
    seconds = {name: outcome.seconds for name, outcome in told.outcomes.items()}
    shown = {name: f"{n:.1f}" for name, n in {**seconds, "all": sum(seconds.values())}.items()}
    return _section(
        "about",
        "Settings, machine, times",
        f"""<p>{told.about}</p>
{_pairs("Size of this run", ("what", "how much"), told.settings)}
{_pairs("Environment", ("what", "which"), told.environment)}
{VOLATILE[0]}
{_pairs("Processor seconds of each experiment", ("experiment", "seconds"), shown)}
{_pairs("This run", ("what", "when"), told.times)}
{VOLATILE[1]}""",
    )


def without_times(report: str) -> str:
    """The page less what differs between two runs of the same numbers."""
    first, last = (re.escape(mark) for mark in VOLATILE)
    return re.sub(f"{first}.*?{last}", "", report, flags=re.DOTALL)


# ------------------------------------------------------------------------------------ its parts


def _section(name: str, title: str, body: str) -> str:
    return f"""<section id="{name}" aria-labelledby="{name}-title">
<h2 id="{name}-title">{_text(title)}</h2>
{body}
</section>"""


def _failed(words: str) -> str:
    return f'<p class="failed">{words}</p>'


def _verdict(name: str) -> str:
    return f'<span class="verdict {_CLASSES[name][0]}">{name}</span>'


def _figure(picture: Picture, drawing: str, command: str) -> str:
    kind = "box paper" if picture.paper else "box"
    return f"""<figure id="figure-{picture.name}">
<h3>{_text(picture.title)}</h3>
<div class="{kind}" tabindex="0" role="group" aria-label="{_text(picture.title)}">{drawing}</div>
<figcaption>{_text(picture.caption)} <span class="muted">Files:
<a href="figures/{picture.name}.svg">SVG</a>, <a href="figures/{picture.name}.pdf">PDF</a>, by
<code>{command}</code></span></figcaption>
</figure>"""


def inline_svg(picture: Picture, svg: str) -> str:
    """A figure's SVG for the middle of a page: own ids, the page's color, a text for readers."""
    start = svg.index("<svg")
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[start:], flags=re.DOTALL)
    prefix = f"{picture.name}-"
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', body)
    if not picture.paper:
        for color in (INK, "#000000", "black"):
            body = body.replace(f": {color}", ": currentColor")
        # matplotlib leaves black text without a color
        body = body.replace("<svg ", '<svg fill="currentColor" ', 1)
    for size in ("width", "height"):
        body = re.sub(rf'(<svg [^>]*?)\s{size}="[^"]*"', r"\1", body, count=1)
    return body.replace("<svg ", f'<svg role="img" aria-label="{_text(picture.alt)}" ', 1).strip()


def _data_table(table: DataTable, rows: Sequence[Row]) -> str:
    names = list(rows[0])
    cells = [[_value_cell(row.get(name, "")) for name in names] for row in rows]
    shown = _table(names, cells, table.caption)
    if len(rows) <= _FOLDED:
        return shown
    title = f"Table: {_text(table.caption)} ({len(rows)} rows)"
    return f"<details><summary>{title}</summary>{shown}</details>"


def _value_cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _cell(_text(value), "says" if len(str(value)) > _LONG else "")
    if isinstance(value, float) and math.isnan(value):
        return _cell("", "n")
    # three digits of thousands are no shorter than all
    is_large = isinstance(value, float) and 1e3 <= abs(value) < 1e6
    return _cell(format_number(round(value) if is_large else value), "n", value)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    body = "\n".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    return f"""<div class="box" tabindex="0" role="group" aria-label="{_text(caption or "Checks")}">
<table class="sortable">{title}
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def _pairs(caption: str, names: Sequence[str], pairs: Mapping[str, str]) -> str:
    rows = [[_cell(_text(name)), _cell(_text(value))] for name, value in pairs.items()]
    return _table(names, rows, caption)


def _cell(content: str, kind: str = "", value: Any = None) -> str:
    css = f' class="{kind}"' if kind else ""
    data = "" if value is None else f' data-value="{_sort_value(value)}"'
    return f"<td{css}{data}>{content}</td>"


def _sort_value(value: Any) -> str:
    if isinstance(value, float):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    return _text(value)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


# ------------------------------------------------------------------------------------ Markdown


def markdown(*sections: str) -> str:
    """Sections as one page."""
    return "\n\n".join(section.strip() for section in sections) + "\n"


def markdown_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> str:
    """Rows as a table, with all columns unless they are given, but for those to drop.

    Columns have the order in which rows have them. Columns that no row fills are left out.
    """
    if not rows:
        return "(nothing at this size)"
    names = list(dict.fromkeys(n for row in rows for n in row)) if columns is None else columns
    names = [n for n in names if n not in drop and any(as_text(row.get(n, "")) for row in rows)]
    lines = [
        "| " + " | ".join(n.replace("_", " ") for n in names) + " |",
        "|" + "---|" * len(names),
    ]
    for row in rows:
        cells = (as_text(row.get(n, "")).replace("|", "\\|") for n in names)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_text(value: Any) -> str:
    """A value of a table: three digits, "never" for an infinite time, nothing for NaN."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, float) and math.isfinite(value) and abs(value - round(value)) < 1e-12:
        value = float(round(value))
    return format_number(value)


def ledger_rows(findings: Sequence[Finding]) -> list[Row]:
    """The findings for :func:`markdown_table`."""
    return [
        {
            "claim": f.claim.name,
            "verdict": f"**{f.verdict}**",
            "says": f.claim.says,
            "decided by": f.headline,
            "where": f.claim.where,
        }
        for f in findings
    ]
