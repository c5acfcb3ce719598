"""`asgld compare`: methods side by side on a problem; `asgld table1`: the measured Table 1."""

from __future__ import annotations

import ast
import enum
import json
import os
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asgld.problems import Problem, problem_names
from asgld.problems import problem as make_problem
from asgld.run import files
from asgld_study.comparison import analysis
from asgld_study.sweep.catalog import BY_LABEL, Contender, proved_options
from asgld_study.sweep.engine import Cell, Result, Store, run_cells, start_points
from asgld_study.sweep.tuning import Search, run_searches

_DEFAULT = "gd,perturbed-gd,agld,asgld,cubic-newton"


class Mode(enum.StrEnum):
    """How options are chosen."""

    PRACTICAL = "practical"
    THEORY = "theory"
    DEFAULT = "default"


class TableSize(enum.StrEnum):
    """How much `asgld table1` measures."""

    CI = "ci"
    FULL = "full"


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
    jobs: Annotated[int, typer.Option(help="Processes; results do not depend on it.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, figure and results; resumes there.")
    ] = None,
) -> None:
    """Compare methods on a problem under one cost count."""
    console = Console()
    try:
        subject_options = dict(_parse(text) for text in option or [])
        subject = make_problem(problem, **subject_options)
        contenders = _contenders(methods)
        cells = [
            Cell(problem, c.method, subject_options, c.base(subject), start, replicas=seeds,
                 seed=seed, max_steps=max_steps, budget=budget, eps=eps, gamma=gamma,
                 tags={"label": c.label, "mode": mode.value})
            for c in contenders
        ]  # fmt: skip
        store = None if out is None else Store(out / "cells")
        kept = _kept(setting or [], contenders)
        with _progress(console) as progress:
            cells = _with_options(cells, contenders, subject, kept, mode, trials, store, jobs,
                                  progress)  # fmt: skip
            task = progress.add_task("runs", total=len(cells))

            def show(done: int, total: int, result: Result) -> None:
                progress.update(task, completed=done, description=result.label)

            results = run_cells(cells, store=store, jobs=jobs, report=show)
    except (ValueError, TypeError) as error:
        console.print(f"[red]{error}[/red]")
        raise typer.Exit(2) from error
    rows = _rows(results)
    console.print(_table(rows, f"{subject!r}, start {start}, {seeds} seeds, {mode} settings"))
    console.print(
        f"median to |grad f| <= {eps:g} and lambda_min >= -{gamma:g}, censored replicas included; "
        "cost in gradient-equivalents (value 0.5, product 2, Hessian d)"
    )
    for row in analysis.failures(results):
        console.print(f"[red]{row['method']} failed: {row['error']}[/red]")
    if out is not None:
        from asgld_study.comparison.figures import compare_figure

        files.write_text(out / "compare.csv", files.as_csv(rows))
        figure = compare_figure([r for r in results if not r.error], problem)
        files.write_bytes(out / "compare.png", files.as_bytes(figure, "png"))
        console.print(f"table: {out / 'compare.csv'}   figure: {out / 'compare.png'}")


def table1(
    size: Annotated[
        TableSize, typer.Option(help="ci: a minute or two; full: half an hour on two cores.")
    ] = TableSize.CI,
    jobs: Annotated[int, typer.Option(help="Processes; results do not depend on it.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder; an interrupted run resumes there.")] = Path(
        "reproduction/table1"
    ),
) -> None:
    """Measure the paper's Table 1: tables, figures and a page."""
    from asgld_study.comparison import figures, page
    from asgld_study.experiments.table1 import run_study

    console = Console()
    with _progress(console) as progress:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int, what: str) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, description=f"{stage}: {what}")

        study = run_study(size.value, store=Store(out / "cells"), jobs=jobs, report=show)
    tables = page.tables(study)
    for name, rows in tables.items():
        if rows:
            files.write_text(out / f"{name}.csv", files.as_csv(_filled(rows)))
    manifest = page.manifest(study, _command(), _machine(jobs))
    files.write_text(out / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    files.write_text(out / "table1.md", page.page(study, manifest, tables))
    for name, figure in figures.all_figures(study).items():
        files.write_bytes(out / "figures" / f"{name}.png", files.as_bytes(figure, "png"))
    console.print(_table(tables["checks"], "What theory predicts"))
    for row in tables["failures"]:
        console.print(f"[red]{row['method']} on {row['problem']} failed: {row['error']}[/red]")
    console.print(f"page: {out / 'table1.md'}   tables, figures, manifest: {out}")


# ------------------------------------------------------------------------------------ options


def _parse(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"option {text!r}: need key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _contenders(methods: str) -> list[Contender]:
    labels = list(BY_LABEL) if methods == "all" else [m.strip() for m in methods.split(",")]
    for label in labels:
        if label not in BY_LABEL:
            raise ValueError(f"methods={label!r}: known are {', '.join(BY_LABEL)}, or 'all'")
    return [BY_LABEL[label] for label in labels]


def _kept(settings: list[str], contenders: list[Contender]) -> dict[str, dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = {c.label: {} for c in contenders}
    for text in settings:
        name, value = _parse(text)
        label, _, key = name.rpartition(".")
        if label not in kept:
            raise ValueError(f"--set {text!r}: need method.key=value, with one of the methods")
        kept[label][key] = value
    return kept


def _with_options(
    cells: list[Cell],
    contenders: list[Contender],
    subject: Problem,
    kept: dict[str, dict[str, Any]],
    mode: Mode,
    trials: int,
    store: Store | None,
    jobs: int,
    progress: Progress,
) -> list[Cell]:
    """The cells with their options filled in as the mode says."""
    from dataclasses import replace

    chosen: list[dict[str, Any]] = [kept[c.label] for c in contenders]
    if mode is Mode.THEORY:
        x0 = start_points(subject, replace(cells[0], replicas=1))
        gap = max(float(subject.value(x0)[0]) - (subject.facts.minimum or 0.0), 1e-3)
        for i, c in enumerate(contenders):
            proved = proved_options(c, subject, eps=cells[i].eps, gamma=cells[i].gamma, gap=gap)
            if proved is None:
                raise ValueError(
                    f"mode='theory': problem {cells[i].problem!r} proves no constants; use "
                    "--mode practical"
                )
            chosen[i] = {**proved, **kept[c.label]}
    elif mode is Mode.PRACTICAL:
        task = progress.add_task("settings", total=len(cells))
        searches = []
        for cell, c in zip(cells, contenders, strict=True):
            fixed = {**cell.options, **kept[c.label]}
            ranges = {k: v for k, v in c.search_ranges.items() if k not in fixed}
            small = replace(cell, options=fixed, replicas=min(cell.replicas, 5))
            searches.append(Search(small, ranges, trials))

        def show(done: int, total: int, label: str) -> None:
            progress.update(task, completed=done, total=total, description=f"settings: {label}")

        chosen = [t.options for t in run_searches(searches, store=store, jobs=jobs, report=show)]
    return [
        replace(cell, options={**cell.options, **options})
        for cell, options in zip(cells, chosen, strict=True)
    ]


# ------------------------------------------------------------------------------------ output


def _rows(results: list[Result]) -> list[dict[str, Any]]:
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


def _filled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with all columns that any of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in names} for row in rows]


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("method", "check") else "right")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    return table


def _shown(value: Any) -> str:
    is_missing = isinstance(value, float) and value != value
    return "" if is_missing else files.format_number(value)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:36s}"), BarColumn(), TextColumn("{task.completed:.0f}"
               "/{task.total:.0f}"), TimeElapsedColumn())  # fmt: skip
    return Progress(*columns, console=console)


def _command() -> str:
    return " ".join(["asgld", *sys.argv[1:]])


def _machine(jobs: int) -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "jobs": jobs,
    }
