"""`asgld reproduce`: the paper, claim by claim; and what `asgld theory --measure` runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asgld.run.files import as_bytes, as_csv, write_bytes, write_text
from asgld_study import page
from asgld_study.console import stages
from asgld_study.engine import SIZES, Experiment, Size, measure, run_experiments
from asgld_study.judge import Finding, judge_claims, tally
from asgld_study.paper import CLAIMS, EXPERIMENTS, PICTURES, TABLES, rates
from asgld_study.paper import escape as saddles

TITLE = "Adaptive stochastic gradient Langevin dynamics, claim by claim"


class SizeName(StrEnum):
    """How much is measured."""

    TINY = "tiny"
    REDUCED = "reduced"
    FULL = "full"


def reproduce(
    full: Annotated[bool, typer.Option("--full", help="The same as --size full.")] = False,
    size: Annotated[
        SizeName,
        typer.Option(
            help="reduced: minutes. full: the paper's size, within an hour on two cores. "
            "tiny: seconds, only to see that it runs."
        ),
    ] = SizeName.REDUCED,
    only: Annotated[
        list[str] | None, typer.Option(help="An experiment, by its name; may be repeated.")
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; numbers do not depend on it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder; an interrupted run goes on there.")] = Path(
        "reproduction"
    ),
) -> None:
    """Measure what the paper claims and write a report that says what holds."""
    console = Console()
    if list_names:
        for experiment in EXPERIMENTS:
            console.print(f"{experiment.name:12s} {experiment.question}", soft_wrap=True)
        return
    try:
        chosen = choose(only or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    name = "full" if full else size.value
    processes = jobs or os.cpu_count() or 1
    began, clock = datetime.now(UTC), time.perf_counter()
    data_sets, steps = SIZES[name].study
    console.print(
        f"{len(chosen)} experiments at size {name} (study: {data_sets} data sets, {steps:,} "
        f"steps), {processes} processes, results kept in {out / 'results'}"
    )
    with stages(console, out) as show:
        outcomes = run_experiments(
            chosen,
            name,
            folder=out / "results",
            jobs=processes,
            report=partial(show, "experiments"),
        )
        times = {
            "begun": began.isoformat(timespec="seconds"),
            "measured after": f"{time.perf_counter() - clock:.0f} s",
            "processes": str(processes),
        }
        contents = report_of(outcomes, name, times)
        path = page.write(contents, out, jobs=processes, report=partial(show, "report"))
        write_text(out / "paper.md", paper_page(contents.findings, name))
    for outcome in outcomes.values():
        for reason in outcome.errors[:1]:
            console.print(f"[red]{outcome.experiment.name} failed: {escape(reason)}[/red]")
    counts = (f"{count} {name}" for name, count in tally(contents.findings).items() if count)
    console.print(f"verdicts: {', '.join(counts)}")
    console.print(f"{time.perf_counter() - clock:.0f} s; report: {path}", soft_wrap=True)


def choose(names: Sequence[str]) -> tuple[Experiment, ...]:
    """The experiments of these names, in the order of the report; all of them for no names."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name in names:
        if name not in known:
            raise ValueError(f"only={name!r}: known are {', '.join(known)}")
    return tuple(e for e in EXPERIMENTS if not names or e.name in names)


def report_of(outcomes: Mapping[str, Any], size: str, times: Mapping[str, str]) -> page.Contents:
    """The report on the claims of the paper that these outcomes decide."""
    data_sets, steps = SIZES[size].study
    chosen = "" if size == "reduced" else f" --size {size}"
    return page.Contents(
        title=TITLE,
        intro="What H. Sang and J. Liu claim in <cite>Adaptive Stochastic Gradient Langevin "
        "Dynamics: Taming Convergence and Saddle Point Escape Time</cite>, what was measured with "
        "the optimizers of <code>asgld</code>, and what holds. Size of this run: "
        f"<strong>{size}</strong> ({data_sets} data sets of 10,000 and {steps:,} iterations in the "
        "study).",
        outcomes=dict(outcomes),
        findings=judge_claims(CLAIMS, dict(outcomes)),
        pictures=PICTURES,
        tables=TABLES,
        command="asgld reproduce --only {}" + chosen,
        about="In the study the variable is z = log x, lr = 0.1, sigma = 0.1, delta = 0.01, D "
        "starts at 1, x at (1, 1); SGLD_A has lr = 1/(1+t). The objective is the mean over the "
        "samples; batches are drawn by index, with replacement.",
        settings=_settings(SIZES[size]),
        environment=page.environment(),
        times=times,
    )


def _settings(size: Size) -> dict[str, str]:
    return {
        "study": f"{size.study[0]} data sets, {size.study[1]:,} steps",
        "its sweeps": f"{size.sweep[0]} data sets, {size.sweep[1]:,} steps",
        "exponents": f"{size.chains} chains, {size.steps:,} steps",
        "maps over (alpha, beta)": f"{size.chains} chains, {size.grid:,} steps",
        "saddle to minimum": f"{size.chains} chains, up to {size.minima:,} steps",
        "escapes": f"{size.escapes} chains, d = {', '.join(map(str, size.dims))}",
        "seeds": "0 everywhere; data set r of the study is drawn with seed r",
    }


def paper_page(findings: Sequence[Finding], size: str) -> str:
    """The ledger as a page of the documentation."""
    counts = ", ".join(f"{name} {n}" for name, n in tally(findings).items() if n)
    notes = [
        f"- **{f.claim.name}** ({f.verdict}): {f.claim.note}"
        for f in findings
        if f.claim.note and f.verdict not in ("holds", "not testable")
    ]
    return page.markdown(
        "# The paper, claim by claim",
        "<!-- Written by `asgld reproduce`; edit study/asgld_study/paper instead. -->",
        "*For readers of the paper who want to know what of it can be relied on.*",
        "What Sang and Liu claim, and what the optimizers of this library do. `asgld reproduce` "
        "measures every claim anew and writes this page and a report with all figures; no verdict "
        f"is typed in. The run behind this page: `asgld reproduce --size {size}`. Verdicts: "
        f"{counts}.",
        "A verdict follows from checks of a number and its 95 % interval. *Refuted*: a check fails "
        "without which nothing of the claim is left. *Not supported*: it stays open. *Holds with "
        "correction*: only details fail. The check shown is the one that decided.",
        page.markdown_table(page.ledger_rows(findings)),
        "## What is true instead",
        "\n".join(notes),
    )


# ------------------------------------------------------------------------------------ theory


def measure_theory(
    console: Console,
    what: str,
    steps: int,
    replicas: int | None,
    limit: int | None,
    out: Path | None,
    plot: Path | None,
) -> None:
    """What `asgld theory --measure` runs: exponents or escape times, one after the other."""
    if what == "exponents":
        tasks = rates.case_tasks(rates.CASES[:limit], steps, replicas or 24)
        row_of: Callable[..., page.Row] = partial(rates.exponent_row, decades=2)
        table_of, draw = _exponent_table, rates.draw_exponents
    else:
        tasks = saddles.grid_tasks(saddles.GRID[:limit], replicas or 200)
        row_of, table_of, draw = saddles.grid_row, _escape_table, saddles.draw_grid
    rows: list[page.Row] = []
    with stages(console, out) as show:
        for task in tasks:
            (found,) = measure([task])
            if found.value is None:
                raise ValueError(f"{what}: {found.error}")
            rows.append(row_of(found.value))
            show(what, len(rows), len(tasks), "")
            if out is not None:  # after every row: an interrupted run keeps what it has
                write_text(out, as_csv(rows))
        console.print(table_of(rows))
        if out is not None:
            console.print(f"written to {out}")
        if plot is not None:
            path = plot / f"{what}-measured.png"
            write_bytes(path, as_bytes(draw(rows), "png"))
            console.print(str(path))


def _exponent_table(rows: Sequence[page.Row]) -> Table:
    table = Table("case", "average", "last iterate", "published", "corrected",
                  title="Exponents e of k^-e, with 95 % intervals")  # fmt: skip
    for row in rows:
        case = rates.Case(*(row[n] for n in ("method", "alpha", "beta", "theta", "function")))
        table.add_row(
            case.label,
            *(
                f"{row[n]:.2f} [{row[n + '_low']:.2f}, {row[n + '_high']:.2f}]"
                for n in ("average", "last")
            ),
            *("-" if math.isnan(row[n]) else f"{row[n]:g}" for n in ("published", "corrected")),
        )
    return table


def _escape_table(rows: Sequence[page.Row]) -> Table:
    table = Table("criterion", "settings", "median", "q10", "q90", "min", "max",
                  title="Measured over predicted median escape time")  # fmt: skip
    for criterion in saddles.CRITERIA:
        ratios = np.array([row[f"{criterion}_ratio"] for row in rows])
        numbers = (np.median(ratios), *np.quantile(ratios, [0.1, 0.9]), ratios.min(), ratios.max())
        table.add_row(criterion, str(len(ratios)), *(f"{n:.3f}" for n in numbers))
    return table
