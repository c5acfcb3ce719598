"""The report as one HTML page that needs nothing else, and the ledger as Markdown.

Equal outcomes give equal bytes. What differs between two runs of the same numbers, dates and times,
stands between the two `VOLATILE` comments and nowhere else.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asgld.run.files import format_number
from asgld.theory import item
from asgld_study.experiments.declare import SIZES
from asgld_study.reproduction.ledger import Check, Finding, number, tally
from asgld_study.reproduction.pictures import INK, PICTURES, Picture
from asgld_study.reproduction.runner import Outcome, Outcomes
from asgld_study.reproduction.tables import TABLES, Table

VOLATILE = ("<!-- times -->", "<!-- /times -->")
_ASSETS = Path(__file__).parents[1] / "assets"
_CLASSES = {
    "holds": "holds",
    "holds with correction": "correction",
    "not supported": "unsupported",
    "refuted": "refuted",
    "not testable": "untestable",
}
_LONG = 24  # characters of a cell beyond which it gets a wide column
_MARKS = {True: "yes", False: "no", None: "open"}


@dataclass(frozen=True)
class Context:
    """What a report says besides its numbers.

    Args:
        size: of the run.
        environment: name -> value, equal for equal machines.
        times: name -> value, different in every run.
    """

    size: str
    environment: Mapping[str, str]
    times: Mapping[str, str]


def page(
    outcomes: Outcomes,
    findings: Sequence[Finding],
    drawings: Mapping[str, str],
    context: Context,
) -> str:
    """The whole page; `drawings` are the figures as SVG, by name."""
    parts = [
        _header(outcomes, findings, context),
        _ledger(findings),
        *(_experiment(outcome, outcomes, drawings, context) for outcome in outcomes.values()),
        _details(findings),
        _about(outcomes, context),
    ]
    body = "\n".join(parts)
    style, script = ((_ASSETS / name).read_text() for name in ("report.css", "report.js"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ASGLD, claim by claim</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#ledger">To the verdicts</a>
{body}
<script>
{script}</script>
</body>
</html>
"""


def _header(outcomes: Outcomes, findings: Sequence[Finding], context: Context) -> str:
    cards = "\n".join(
        f'<li class="{_CLASSES[name]}"><strong>{count}</strong> {name}</li>'
        for name, count in tally(findings).items()
    )
    links = "\n".join(
        f'<li><a href="#{name}">{_text(outcome.experiment.title)}</a></li>'
        for name, outcome in outcomes.items()
    )
    failed = [name for name, outcome in outcomes.items() if outcome.errors]
    warning = (
        f'<p class="failed">Incomplete: {", ".join(failed)}. The claims that rest on it say so.</p>'
        if failed
        else ""
    )
    size = SIZES[context.size]
    return f"""<header>
<button id="theme" type="button" hidden></button>
<h1>Adaptive stochastic gradient Langevin dynamics, claim by claim</h1>
<p>What H. Sang and J. Liu claim in <cite>Adaptive Stochastic Gradient Langevin Dynamics: Taming
Convergence and Saddle Point Escape Time</cite>, what was measured with the optimizers of
<code>asgld</code>, and what holds. Size of this run: <strong>{context.size}</strong>
({size.study[0]} data sets of 10,000 and {size.study[1]:,} iterations in the study).</p>
{warning}
<ul class="tally" aria-label="Verdicts">
{cards}
</ul>
<nav aria-label="Experiments"><ul>
<li><a href="#ledger">All claims and verdicts</a></li>
{links}
<li><a href="#details">Numbers behind each verdict</a></li>
<li><a href="#about">Settings, machine, times</a></li>
</ul></nav>
</header>
<main>"""


# ------------------------------------------------------------------------------------ the ledger


def _ledger(findings: Sequence[Finding]) -> str:
    rows = [
        [
            _cell(f'<a href="#claim-{f.claim.name}">{f.claim.name}</a>', value=f.claim.name),
            _cell(_verdict(f.verdict), value=f.verdict),
            _cell(_text(f.claim.says), "says"),
            _cell(_text(_headline(f)), "says"),
            _cell(_text(f.claim.where)),
        ]
        for f in findings
    ]
    names = ("claim", "verdict", "says", "decided by", "where")
    return f"""<section id="ledger" aria-labelledby="ledger-title">
<h2 id="ledger-title">Claims and verdicts</h2>
<p>Every verdict is computed from the checks under <a href="#details">Numbers behind each
verdict</a>. <span class="verdict holds">holds</span>: all checks pass.
<span class="verdict correction">holds with correction</span>: its core does, a detail does not.
<span class="verdict unsupported">not supported</span>: the numbers leave it open.
<span class="verdict refuted">refuted</span>: a core check fails.
<span class="verdict untestable">not testable</span>: no number speaks for or against it.</p>
{_table_html(names, rows, "Select a heading to sort.")}
</section>"""


def _headline(finding: Finding) -> str:
    """The check that decided."""
    if finding.verdict == "not testable":
        return finding.failure or "no run within reach speaks for or against it"
    decisive = _decisive(finding)
    return f"{decisive.says}: {number(decisive)}, asked {decisive.asked}"


def _decisive(finding: Finding) -> Check:
    order = {
        "refuted": (True, False),
        "not supported": (True, None),
        "holds with correction": (False, False),
    }
    core, passed = order.get(finding.verdict, (True, True))
    found = [c for c in finding.checks if c.core is core and c.passed is passed]
    # What fails is shown by its clearest case, what holds by its narrowest.
    pick = min if finding.verdict == "holds" else max
    return pick(found or list(finding.checks), key=_distance)


def _distance(check: Check) -> float:
    """How far a check is from its bound, in relative terms."""
    bounds = [float(b) for b in re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", check.asked)]
    if math.isnan(check.value) or not bounds:
        return -1.0
    if math.isinf(check.value):
        return math.inf
    return min(abs(check.value - b) for b in bounds) / (abs(bounds[0]) + 0.1)


def _details(findings: Sequence[Finding]) -> str:
    blocks = []
    for f in findings:
        rows = [
            [
                _cell(_text(c.says), "says"),
                _cell(_text(number(c)), "n", c.value),
                _cell(_text(c.asked)),
                _cell(_MARKS[c.passed]),
                _cell("core" if c.core else "detail"),
            ]
            for c in f.checks
        ]
        names = ("number", "measured [95 %]", "asked", "so", "kind")
        table = _table_html(names, rows, "") if rows else f"<p>{_text(f.failure)}</p>"
        note = (
            f"<p><strong>Instead:</strong> {_text(f.claim.note)}</p>"
            if f.claim.note and f.verdict != "holds"
            else ""
        )
        theory = ""
        if f.claim.item:
            found = item(f.claim.item)
            theory = (
                f"<p><strong>By proof</strong> ({_text(found.name)} as a whole): "
                f"{_verdict(found.verdict)}. {_text(found.reason)}</p>"
            )
        links = ", ".join(f'<a href="#{name}">{name}</a>' for name in f.claim.experiments)
        blocks.append(f"""<details id="claim-{f.claim.name}">
<summary><strong>{f.claim.name}</strong> {_text(f.claim.says)} {_verdict(f.verdict)}</summary>
<p class="muted">{_text(f.claim.where)}. Experiments: {links}.</p>
{note}
{theory}
{table}
</details>""")
    return f"""<section id="details" aria-labelledby="details-title">
<h2 id="details-title">Numbers behind each verdict</h2>
{chr(10).join(blocks)}
</section>"""


def _verdict(name: str) -> str:
    return f'<span class="verdict {_CLASSES[name]}">{name}</span>'


# ------------------------------------------------------------------------------------ experiments


def _experiment(
    outcome: Outcome, outcomes: Outcomes, drawings: Mapping[str, str], context: Context
) -> str:
    experiment = outcome.experiment
    parts = []
    if outcome.errors:
        parts.append(
            f'<p class="failed">{len(outcome.errors)} of its tasks failed; the first: '
            f"<code>{_text(outcome.errors[0])}</code></p>"
        )
    command = f"asgld reproduce --only {experiment.name}"
    command += "" if context.size == "reduced" else f" --size {context.size}"
    for picture in PICTURES:
        if picture.experiment == experiment.name and picture.name in drawings:
            parts.append(_figure(picture, drawings[picture.name], command))
    for table in TABLES:
        if table.experiment == experiment.name and (rows := rows_of(table, outcomes)):
            parts.append(_data_table(table, rows))
    return f"""<section id="{experiment.name}" aria-labelledby="{experiment.name}-title">
<h2 id="{experiment.name}-title">{_text(experiment.title)}</h2>
<p>{_text(experiment.question)}</p>
{chr(10).join(parts)}
<p class="muted">Repeat it: <code>{command}</code></p>
</section>"""


def rows_of(table: Table, outcomes: Outcomes) -> list[dict[str, Any]]:
    """The rows of a table; none where the experiment is too incomplete to make them."""
    try:
        return table.rows(outcomes)
    except Exception:  # the experiment says by itself what failed
        return []


def _figure(picture: Picture, drawing: str, command: str) -> str:
    kind = "box paper" if picture.paper else "box"
    return f"""<figure id="figure-{picture.name}">
<h3>{_text(picture.title)}</h3>
<div class="{kind}" tabindex="0" role="group" aria-label="{_text(picture.title)}">{drawing}</div>
<figcaption>{_text(picture.caption)} <span class="muted">Files:
<a href="figures/{picture.name}.svg">SVG</a>, <a href="figures/{picture.name}.pdf">PDF</a>, by
<code>{command}</code></span></figcaption>
</figure>"""


def failure(reason: str) -> str:
    """What stands in place of a figure that could not be drawn."""
    return f'<p class="failed">Could not be drawn: <code>{_text(reason)}</code></p>'


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
    body = re.sub(r'(<svg [^>]*?)\swidth="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg [^>]*?)\sheight="[^"]*"', r"\1", body, count=1)
    label = html.escape(picture.alt, quote=True)
    return body.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _data_table(table: Table, rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    cells = [[_value_cell(row.get(name, "")) for name in names] for row in rows]
    shown = _table_html(names, cells, table.caption)
    if len(rows) <= 20:
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


def _table_html(names: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    body = "\n".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    label = _text(caption or "Checks")
    return f"""<div class="box" tabindex="0" role="group" aria-label="{label}">
<table class="sortable">{title}
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def _cell(content: str, kind: str = "", value: Any = None) -> str:
    css = f' class="{kind}"' if kind else ""
    data = "" if value is None else f' data-value="{_sort_value(value)}"'
    return f"<td{css}{data}>{content}</td>"


def _sort_value(value: Any) -> str:
    if isinstance(value, float):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    return html.escape(str(value), quote=True)


# ------------------------------------------------------------------------------------ about


def _about(outcomes: Outcomes, context: Context) -> str:
    size = SIZES[context.size]
    settings = [
        ("study", f"{size.study[0]} data sets, {size.study[1]:,} steps"),
        ("its sweeps", f"{size.sweep[0]} data sets, {size.sweep[1]:,} steps"),
        ("exponents", f"{size.chains} chains, {size.steps:,} steps"),
        ("maps over (alpha, beta)", f"{size.chains} chains, {size.grid:,} steps"),
        ("saddle to minimum", f"{size.chains} chains, up to {size.minima:,} steps"),
        ("escapes", f"{size.escapes} chains, d = {', '.join(map(str, size.dims))}"),
        ("seeds", "0 everywhere; data set r of the study is drawn with seed r"),
    ]
    times = [(name, f"{outcome.seconds:.1f}") for name, outcome in outcomes.items()]
    times.append(("all", f"{sum(outcome.seconds for outcome in outcomes.values()):.1f}"))
    return f"""<section id="about" aria-labelledby="about-title">
<h2 id="about-title">Settings, machine, times</h2>
<p>In the study the variable is z = log x, lr = 0.1, sigma = 0.1, delta = 0.01, D starts at 1, x at
(1, 1); SGLD_A has lr = 1/(1+t). The objective is the mean over the samples; batches are drawn by
index, with replacement.</p>
{_pairs("Size of this run", ("what", "how much"), settings)}
{_pairs("Environment", ("what", "which"), list(context.environment.items()))}
{VOLATILE[0]}
{_pairs("Processor seconds of each experiment", ("experiment", "seconds"), times)}
{_pairs("This run", ("what", "when"), list(context.times.items()))}
{VOLATILE[1]}
</section>
</main>
<footer><p>Written by <code>asgld reproduce</code>. Figures as SVG and PDF are in the folder
<code>figures</code> beside this page, tables as CSV in <code>tables</code>.</p></footer>"""


def _pairs(caption: str, names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    rows = [[_cell(_text(name)), _cell(_text(value))] for name, value in pairs]
    return _table_html(names, rows, caption)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def without_times(report: str) -> str:
    """The page less what differs between two runs of the same numbers."""
    first, last = (re.escape(mark) for mark in VOLATILE)
    return re.sub(f"{first}.*?{last}", "", report, flags=re.DOTALL)


# ------------------------------------------------------------------------------------ Markdown


def markdown(findings: Sequence[Finding], size: str) -> str:
    """The ledger as a page of the documentation."""
    counts = ", ".join(f"{name} {n}" for name, n in tally(findings).items() if n)
    lines = [
        "# The paper, claim by claim",
        "",
        "<!-- Written by `asgld reproduce`; edit src/asgld/reproduction/claims instead. -->",
        "",
        "*For readers of the paper who want to know what of it can be relied on.*",
        "",
        "What Sang and Liu claim, and what the optimizers of this library do. `asgld reproduce` "
        "measures every claim anew and writes this page and a report with all figures; no verdict "
        f"is typed in. The run behind this page: `asgld reproduce --size {size}`. Verdicts: "
        f"{counts}.",
        "",
        "A verdict follows from checks of a number and its 95 % interval. *Refuted*: a check fails "
        "without which nothing of the claim is left. *Not supported*: it stays open. *Holds with "
        "correction*: only details fail. The check shown is the one that decided.",
        "",
        "| claim | verdict | says | decided by | where |",
        "|---|---|---|---|---|",
    ]
    for f in findings:
        cells = (f.claim.name, f"**{f.verdict}**", f.claim.says, _headline(f), f.claim.where)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    notes = [f for f in findings if f.claim.note and f.verdict not in ("holds", "not testable")]
    lines += ["", "## What is true instead", ""]
    lines += [f"- **{f.claim.name}** ({f.verdict}): {f.claim.note}" for f in notes]
    return "\n".join(lines) + "\n"
