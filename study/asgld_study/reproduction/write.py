"""From outcomes to files: the page, figures as SVG and PDF, tables as CSV, the ledger."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import asgld
from asgld.run.files import as_csv, write_bytes, write_text
from asgld_study.reproduction import ledger, page
from asgld_study.reproduction.claims import CLAIMS
from asgld_study.reproduction.ledger import Finding
from asgld_study.reproduction.pictures import PICTURES, Picture
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.tables import TABLES
from asgld_study.sweep.engine import run_tasks


@dataclass(frozen=True)
class _Drawing:
    """A figure to draw, in whatever process, and no more than it reads."""

    name: str
    outcomes: Outcomes


def write(
    outcomes: Outcomes,
    *,
    size: str,
    out: Path,
    times: dict[str, str],
    jobs: int = 1,
    report: Callable[[int, int, str], None] | None = None,
) -> tuple[Path, list[Finding]]:
    """Write everything under `out` and return the path of the page and the findings."""
    findings = ledger.judge(CLAIMS, outcomes)
    chosen = [p for p in PICTURES if p.experiment in outcomes]
    drawings = {}
    for done, (i, drawn) in enumerate(
        run_tasks(_draw, [_drawing(p, outcomes) for p in chosen], jobs), start=1
    ):
        if "error" in drawn:
            drawings[chosen[i].name] = page.failure(drawn["error"].decode())
        else:
            for kind, content in drawn.items():
                write_bytes(out / "figures" / f"{chosen[i].name}.{kind}", content)
            drawings[chosen[i].name] = page.inline_svg(chosen[i], drawn["svg"].decode())
        if report is not None:
            report(done, len(chosen), f"figure {chosen[i].name}")
    for table in TABLES:
        if table.experiment in outcomes and (rows := page.rows_of(table, outcomes)):
            write_text(out / "tables" / f"{table.name}.csv", as_csv(rows))
    rows = [ledger.as_row(f) for f in findings]
    if rows:
        write_text(out / "ledger.csv", as_csv(rows))
        write_text(out / "ledger.json", json.dumps(rows, indent=1) + "\n")
    write_text(out / "paper.md", page.markdown(findings, size))
    context = page.Context(size, environment(), times)
    path = out / "report.html"
    write_text(path, page.page(outcomes, findings, drawings, context))
    return path, findings


def _drawing(picture: Picture, outcomes: Outcomes) -> _Drawing:
    needed = (picture.experiment, *picture.also)
    return _Drawing(picture.name, {name: outcomes[name] for name in needed if name in outcomes})


def _draw(drawing: _Drawing) -> dict[str, bytes]:
    """SVG and PDF; the reason where it cannot be drawn, as for an incomplete experiment."""
    (picture,) = (p for p in PICTURES if p.name == drawing.name)
    try:
        return picture.render(drawing.outcomes)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".encode()}


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


def summary_lines(findings: Sequence[Finding]) -> list[str]:
    """The verdicts in a few words, for the terminal."""
    return [f"{count:3d} {name}" for name, count in ledger.tally(findings).items() if count]
