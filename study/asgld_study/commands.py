"""`asgld compare`: methods side by side on a problem; `asgld table1`: the measured Table 1."""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
import os
import platform
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asgld.problems import Problem, problem_names
from asgld.problems import problem as make_problem
from asgld.run.files import as_csv, write_bytes, write_text
from asgld_study.catalog import BY_LABEL, Contender
from asgld_study.cells import Cell, CellResult, measure_cells
from asgld_study.console import stages
from asgld_study.page import as_text
from asgld_study.tuning import SettingSearch, options_by_theory, run_searches

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
    how: dict[str, Any] = {"folder": None if out is None else out / "cells", "jobs": jobs}
    try:
        subject_options = dict(_parse(text) for text in option or [])
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
        console.print(f"[red]{escape(str(error))}[/red]")
        raise typer.Exit(2) from error
    console.print(_table(rows, f"{subject!r}, start {start}, {seeds} seeds, {mode} settings"))
    console.print(
        f"median to |grad f| <= {eps:g} and lambda_min >= -{gamma:g}, censored replicas included; "
        "cost in gradient-equivalents (value 0.5, product 2, Hessian d)"
    )
    _print_failures(console, results)
    if out is not None:
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
    from asgld_study.paper import table1, table1_figures, table1_page
    from asgld_study.paper.table1_cells import EXTENTS
    from asgld_study.paper.table1_tables import measured_tables

    console = Console()
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "jobs": jobs,
    }
    command = " ".join(["asgld", *sys.argv[1:]])
    with stages(console, out) as show:
        plan = EXTENTS[size.value]
        found = table1.run_comparison(plan, folder=out / "cells", jobs=jobs, report=show)
        tables = measured_tables(found)
        tables |= table1.judged_tables(tables)
        table1_page.write_tables(out, tables)
        manifest = table1_page.manifest(size.value, found, command, machine)
        write_text(out / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        write_text(out / "table1.md", table1_page.page(tables, manifest))
        outcomes = table1.as_outcomes(found)
        for done, picture in enumerate(table1_figures.PICTURES, start=1):
            content = picture.render(outcomes, ("png",))["png"]
            write_bytes(out / "figures" / f"{picture.name}.png", content)
            show("figures", done, len(table1_figures.PICTURES), picture.name)
    console.print(_table(tables["checks"], "What theory predicts"))
    _print_failures(console, found.results)
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


# ------------------------------------------------------------------------------------ output


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


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("method", "check") else "right")
    for row in rows:
        table.add_row(*(as_text(value) for value in row.values()))
    return table


def _print_failures(console: Console, results: Sequence[CellResult]) -> None:
    for r in results:
        if r.error:
            console.print(f"[red]{r.label} on {r.cell['problem']} failed: {escape(r.error)}[/red]")
