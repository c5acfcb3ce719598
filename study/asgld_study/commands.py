"""The words of the command line: `asgld reproduce`, `compare --problem` and `table1`, and what
`asgld theory --measure` runs. The exit status is 0 if all was measured, 1 if a part of it failed, 2
for bad usage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asgld.arguments import require
from asgld.cli.inputs import check_folder, check_numbers, key_value
from asgld.cli.words import console as make_console
from asgld.cli.words import fail, say_error
from asgld.problems import PROBLEMS, Problem, problem_names
from asgld.problems import problem as make_problem
from asgld.run.files import as_bytes, as_csv, write_bytes, write_text
from asgld_study import page
from asgld_study.catalog import BY_LABEL, Contender, SettingSearch, options_by_theory, run_searches
from asgld_study.cells import Cell, CellResult, measure_cells
from asgld_study.engine import SIZES, Experiment, Size, measure, run_experiments
from asgld_study.judge import Finding, judge_claims, tally
from asgld_study.paper import CLAIMS, EXPERIMENTS, PICTURES, TABLES, rates
from asgld_study.paper import escape as saddles
from asgld_study.paper.second_reading import revision_lines

_DEFAULT = "gd,perturbed-gd,agld,asgld,cubic-newton"
# Hears (stage, done, all, what).
Show = Callable[[str, int, int, str], None]


class SizeName(StrEnum):
    """How much `asgld reproduce` measures."""

    TINY = "tiny"
    REDUCED = "reduced"
    FULL = "full"


class Mode(StrEnum):
    """How `asgld compare` chooses options."""

    PRACTICAL = "practical"
    THEORY = "theory"
    DEFAULT = "default"


class TableSize(StrEnum):
    """How much `asgld table1` measures."""

    CI = "ci"
    FULL = "full"


# ------------------------------------------------------------------------------------ reproduce


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
    console = make_console()
    if list_names:
        for experiment in EXPERIMENTS:
            console.print(f"{experiment.name:12s} {experiment.question}", soft_wrap=True)
        return
    try:
        chosen = choose(only or [])
        check_folder(out, "--out")
    except ValueError as error:
        fail(error)
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
    failures = [
        f"{outcome.experiment.name} failed: {reason}"
        for outcome in outcomes.values()
        for reason in outcome.errors[:1]
    ]
    counts = (f"{count} {name}" for name, count in tally(contents.findings).items() if count)
    console.print(f"verdicts: {', '.join(counts)}")
    console.print(f"{time.perf_counter() - clock:.0f} s; report: {path}", soft_wrap=True)
    _report_failures(failures)


def choose(names: Sequence[str]) -> tuple[Experiment, ...]:
    """The experiments of these names, in the order of the report; all of them for no names."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name in names:
        if name not in known:
            raise ValueError(f"only={name!r}: known are {', '.join(known)}")
    return tuple(e for e in EXPERIMENTS if not names or e.name in names)


_SHORT = (
    " Runs of this size are short. Claims on small accuracies and on the end of long runs, such as "
    "M4, X2 and A1, may get another verdict than with <code>--full</code>."
)


def report_of(outcomes: Mapping[str, Any], size: str, times: Mapping[str, str]) -> page.Contents:
    """The report on the claims of the paper that these outcomes decide."""
    data_sets, steps = SIZES[size].study
    chosen = "" if size == "reduced" else f" --size {size}"
    return page.Contents(
        title="Adaptive stochastic gradient Langevin dynamics, claim by claim",
        intro="What H. Sang and J. Liu claim in <cite>Adaptive Stochastic Gradient Langevin "
        "Dynamics: Taming Convergence and Saddle Point Escape Time</cite>, what was measured with "
        "the optimizers of <code>asgld</code>, and what holds. Size of this run: "
        f"<strong>{size}</strong> ({data_sets} data sets of 10,000 and {steps:,} iterations in the "
        f"study).{_SHORT * (size != 'full')}",
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
        f"- **{f.claim.name}**: {f.claim.note}"
        for f in findings
        if f.claim.note and f.verdict not in ("holds", "not testable")
    ]
    return page.markdown(
        "# The paper, claim by claim",
        "<!-- Written by `asgld reproduce`; edit study/asgld_study/paper instead. -->",
        "*For readers of the paper who want to know what of it can be relied on.*",
        "What Sang and Liu claim, and what the optimizers of this library do. `asgld reproduce` "
        "measures every claim anew and writes this page and a report with all figures; no verdict "
        f"is typed in. The run behind this page: `asgld reproduce --size {size}`; [Table 1, "
        f"measured](table1.md) has a larger run of the rows M1 to M14. Verdicts: {counts}.",
        "A verdict follows from checks of a number and its 95 % interval. *Refuted*: a check fails "
        "without which nothing of the claim is left. *Not supported*: it stays open. *Holds with "
        "correction*: only details fail. *Consistent*: the claim is an upper bound, and every "
        "number stays short of it. The check shown is the one that decided.",
        page.markdown_table(page.ledger_rows(findings)),
        "## What is true instead",
        "\n".join(notes),
        "## What changed since the first reading, and why",
        "\n".join(revision_lines(findings)),
    )


# ------------------------------------------------------------------------------------ compare


def compare(
    problem: Annotated[str, typer.Option(help=f"One of: {', '.join(problem_names())}.")],
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated; 'all', or of: {', '.join(BY_LABEL)}.")
    ] = _DEFAULT,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="key=value of the problem; repeatable."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="method.key=value, kept in any mode; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Replicas of each method.")] = 30,
    start: Annotated[str, typer.Option(help="saddle, kicked or random.")] = "random",
    mode: Annotated[
        Mode, typer.Option(help="Options by random search, by theory, or the defaults.")
    ] = Mode.PRACTICAL,
    trials: Annotated[int, typer.Option(min=1, help="Of the search, for every method.")] = 12,
    eps: Annotated[float, typer.Option(help="Gradient norm of a second-order point.")] = 1e-2,
    gamma: Annotated[float, typer.Option(help="Its lambda_min is at least -gamma.")] = 1e-1,
    budget: Annotated[float, typer.Option(help="Gradient-equivalents per replica.")] = 5_000.0,
    max_steps: Annotated[int, typer.Option(min=1, help="Steps per replica.")] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; results do not depend on it.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, figure and results; resumes there.")
    ] = None,
) -> None:
    """Compare methods on a problem under one cost count.

    The exit status is 0 if every method ran, 1 if one failed, 2 for bad usage.
    """
    console = make_console()
    how: dict[str, Any] = {"folder": None if out is None else out / "cells", "jobs": jobs}
    try:
        subject_options = dict(key_value(text) for text in option or [])
        check_folder(out, "--out")
        for name, value in (("--eps", eps), ("--gamma", gamma), ("--budget", budget)):
            require(0.0 < value < math.inf, name, value, "a positive finite number")
        if problem in problem_names():
            check_numbers(subject_options, _annotations(problem))
        subject = make_problem(problem, **subject_options)
        contenders = _contenders(methods)
        kept = _kept(setting or [], contenders)
        cells = [
            Cell(problem, c.method, subject_options, {**c.base(subject), **kept[c.label]}, start,
                 replicas=seeds, seed=seed, max_steps=max_steps, budget=budget, eps=eps,
                 gamma=gamma, tags={"label": c.label, "mode": mode.value})
            for c in contenders
        ]  # fmt: skip
        with stages(console, out) as show:
            if mode is Mode.THEORY:
                cells = [_proved(cell, subject, kept[cell.label]) for cell in cells]
            elif mode is Mode.PRACTICAL:
                found = run_searches(
                    [_search(cell, trials) for cell in cells],
                    **how,
                    report=partial(show, "settings"),
                )
                cells = [
                    dataclasses.replace(cell, options=tuned.options)
                    for cell, tuned in zip(cells, found, strict=True)
                ]
            results = measure_cells(cells, **how, report=partial(show, "runs"))
            rows = _rows(results)
            if out is not None:
                from asgld_study.paper.table1_figures import compare_picture

                write_text(out / "compare.csv", as_csv(rows))
                drawn = compare_picture(results, problem).render({}, ("png",))
                write_bytes(out / "compare.png", drawn["png"])
    except (ValueError, TypeError) as error:
        fail(error)
    console.print(_table(rows, f"{subject!r}, start {start}, {seeds} seeds, {mode} settings"))
    console.print(
        f"median to |grad f| <= {eps:g} and lambda_min >= -{gamma:g}, censored replicas included; "
        "cost in gradient-equivalents (value 0.5, product 2, Hessian d)"
    )
    if out is not None:
        console.print(f"table: {out / 'compare.csv'}   figure: {out / 'compare.png'}")
    _report_failures(_failures(results))


def _annotations(problem: str) -> dict[str, Any]:
    parameters = inspect.signature(PROBLEMS[problem]).parameters.items()
    return {name: str(p.annotation) for name, p in parameters}


def _contenders(methods: str) -> list[Contender]:
    labels = list(BY_LABEL) if methods == "all" else [m.strip() for m in methods.split(",")]
    for label in labels:
        if label not in BY_LABEL:
            raise ValueError(f"methods={label!r}: known are {', '.join(BY_LABEL)}, or 'all'")
    return [BY_LABEL[label] for label in labels]


def _kept(settings: list[str], contenders: list[Contender]) -> dict[str, dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = {c.label: {} for c in contenders}
    for text in settings:
        name, value = key_value(text)
        label, _, key = name.rpartition(".")
        if label not in kept:
            raise ValueError(f"--set {text!r}: need method.key=value, with one of the methods")
        kept[label][key] = value
    return kept


def _proved(cell: Cell, subject: Problem, kept: dict[str, Any]) -> Cell:
    """The cell with options by theory, but for those that the user gave."""
    proved = options_by_theory(BY_LABEL[cell.label], subject, cell)
    if proved is None:
        raise ValueError(
            f"mode='theory': problem {cell.problem!r} proves no constants; use --mode practical"
        )
    return dataclasses.replace(cell, options={**cell.options, **proved, **kept})


def _search(cell: Cell, trials: int) -> SettingSearch:
    """A search for all options that the cell does not have yet, with few replicas."""
    ranges = BY_LABEL[cell.label].search_ranges
    wanted = {name: limits for name, limits in ranges.items() if name not in cell.options}
    few = dataclasses.replace(cell, replicas=min(cell.replicas, 5))
    return SettingSearch(few, wanted, trials)


def _rows(results: list[CellResult]) -> list[dict[str, Any]]:
    return [
        {
            "method": r.label,
            "oracle": BY_LABEL[r.label].oracle,
            "share": r.share("sosp"),
            "steps": r.median("sosp"),
            "cost": r.median("sosp", "spent"),
            **{unit: r.median("sosp", unit) for unit in ("grad", "sample_grad", "hvp", "hessian")},
            "fall": r.median("fall"),
            "leave": r.median("leave"),
            "seconds": r.seconds,
        }
        for r in sorted(results, key=lambda r: (r.error != "", r.median("sosp", "spent")))
    ]


# ------------------------------------------------------------------------------------ table1


def table1(
    size: Annotated[
        TableSize, typer.Option(help="ci: a minute or two; full: half an hour on two cores.")
    ] = TableSize.CI,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; results do not depend on it.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder; an interrupted run resumes there.")] = Path(
        "reproduction/table1"
    ),
) -> None:
    """Measure the paper's Table 1: tables, figures, a page and its appendix."""
    from asgld_study.paper import table1, table1_page
    from asgld_study.paper.table1_cells import EXTENTS
    from asgld_study.paper.table1_tables import measured_tables

    console = make_console()
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "jobs": jobs,
    }
    try:
        check_folder(out, "--out")
    except ValueError as error:
        fail(error)
    command = " ".join(["asgld", *sys.argv[1:]])
    with stages(console, out) as show:
        plan = EXTENTS[size.value]
        found = table1.run_comparison(plan, folder=out / "cells", jobs=jobs, report=show)
        tables = measured_tables(found)
        tables |= table1.judged_tables(tables)
        table1_page.write_tables(out, tables)
        manifest = table1_page.manifest(size.value, found, command, machine)
        write_text(out / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        pages = table1_page.pages(tables, manifest)
        write_text(out / "table1.md", pages.summary)
        write_text(out / "table1-tables.md", pages.appendix)
        outcomes, pictures = table1.as_outcomes(found), table1_page.pictures(tables)
        for done, picture in enumerate(pictures, start=1):
            content = picture.render(outcomes, ("png",))["png"]
            write_bytes(out / "figures" / f"{picture.name}.png", content)
            show("figures", done, len(pictures), picture.name)
    console.print(_table(tables["checks"], "What theory predicts"))
    console.print(f"page: {out / 'table1.md'}   tables, figures, manifest: {out}")
    _report_failures(_failures(found.results))


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


# ------------------------------------------------------------------------------------ output


@contextlib.contextmanager
def stages(console: Console, out: Path | None = None) -> Iterator[Show]:
    """A bar for each stage; a folder `out` that cannot be written ends it with one line."""
    columns = (
        TextColumn("{task.description:32.32s}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
    bars: dict[str, Any] = {}
    try:
        with Progress(*columns, console=console) as progress:

            def show(stage: str, done: int, total: int, what: str) -> None:
                if stage not in bars:
                    bars[stage] = progress.add_task(stage, total=total)
                words = f"{stage}: {what}"
                progress.update(bars[stage], completed=done, total=total, description=words)

            yield show
    except OSError as error:
        fail(f"cannot write {error.filename or out}: {error.strerror or error}", status=1)


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("method", "check") else "right")
    for row in rows:
        table.add_row(*(page.as_text(value) for value in row.values()))
    return table


def _failures(results: Sequence[CellResult]) -> list[str]:
    return [f"{r.label} on {r.cell['problem']} failed: {r.error}" for r in results if r.error]


def _report_failures(failures: Sequence[str]) -> None:
    """A line on stderr for each, and status 1 if there is one."""
    for failure in failures:
        say_error(f"asgld: {failure}")
    if failures:
        raise typer.Exit(1)
