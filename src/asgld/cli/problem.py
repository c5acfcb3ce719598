"""`asgld minimize PROBLEM`: run a method on a built-in problem and say where it ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from asgld._minimize import Result
from asgld._minimize import minimize as run_minimize
from asgld.cli import key_value
from asgld.methods import method_names
from asgld.problems import Problem, problem_names, problem_options
from asgld.problems import problem as make_problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_REPLICAS = 10


def minimize(
    problem: Annotated[str, typer.Argument(help=f"One of: {', '.join(problem_names())}.")],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(method_names())}.")] = "asgld",
    start: Annotated[
        str, typer.Option(help="'random', or 'saddle': exactly at a known saddle.")
    ] = "saddle",
    saddle: Annotated[int, typer.Option(help="Which saddle, with --start saddle.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="key=value, of the problem or the method; repeatable."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Independent chains.")] = 1,
    tol: Annotated[float, typer.Option(help="Gradient norm of a minimum.")] = 1e-3,
    budget: Annotated[float | None, typer.Option(help="Gradient-equivalents per replica.")] = None,
    max_steps: Annotated[int, typer.Option(min=0, help="Steps of the search.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    escape: Annotated[bool, typer.Option(help="Go on from a saddle along its direction.")] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Write a figure of the run to this file (png, svg, pdf).")
    ] = None,
) -> None:
    """Minimize a built-in problem and classify the point that was reached."""
    try:
        options = dict(key_value(text) for text in option or [])
        known = problem_options(problem)
        built = make_problem(problem, **{k: v for k, v in options.items() if k in known})
        result = run_minimize(
            built,
            _start(built, start, saddle, replicas, seed),
            replicas=replicas,
            method=method,
            tol=tol,
            budget=budget,
            max_steps=max_steps,
            seed=seed,
            progress=Console(stderr=True).is_terminal,
            escape=escape,
            **{k: v for k, v in options.items() if k not in known},
        )
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    console = Console()
    console.print(_table(built, method, result))
    console.print(result.message, soft_wrap=True, highlight=False)
    if figure is not None:
        draw(result, title=f"{method} on {problem}").savefig(figure)
        console.print(f"figure: {figure}")


def _start(problem: Problem, start: str, saddle: int, replicas: int, seed: int) -> Any:
    if start == "random":
        return problem.start(replicas, seed=seed)
    if start != "saddle":
        raise ValueError(f"--start {start!r}: need 'random' or 'saddle'")
    saddles = problem.facts.saddles
    if not saddles:
        raise ValueError(f"problem {problem.name!r} has no known saddle: use --start random")
    if not 0 <= saddle < len(saddles):
        raise ValueError(f"--saddle {saddle}: {problem.name!r} knows {len(saddles)} of them")
    return saddles[saddle].point.expand(replicas, -1)


def _table(problem: Problem, method: str, result: Result) -> Table:
    table = Table(title=f"{method} on {problem!r}")
    for column in ("replica", "f", "steps", "gradient-equivalents", "stopped because"):
        table.add_column(column, justify="left" if column == "stopped because" else "right")
    last = result.search if result.polish is None else result.polish
    order = sorted(range(len(last.values)), key=lambda r: float(last.values[r]))
    for replica in order[:_SHOWN_REPLICAS]:
        table.add_row(
            str(replica),
            f"{float(last.values[replica]):.8g}",
            str(int(result.search.steps[replica])),
            f"{float(result.counts.spent[replica]):.1f}",
            result.search.stops[replica].value,
        )
    minimum = problem.facts.minimum
    floor = "unknown" if minimum is None else f"{minimum:.8g}"
    curvature = "not computed" if result.lambda_min is None else f"{result.lambda_min:.4g}"
    table.caption = f"{result.kind.value}\nlambda_min {curvature}, known minimum of f {floor}"
    return table


def draw(result: Result, *, title: str) -> Figure:
    """Values and gradient norms of all replicas against gradient-equivalents."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--figure needs matplotlib: pip install 'asgld[plot]'") from error
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    history = result.history
    left.plot(history.spent, history.values, lw=0.8)
    left.set_ylabel("f")
    right.plot(history.spent, history.grad_norms, lw=0.8)
    right.axhline(result.point.eps, color="0.5", ls="--", lw=0.8)
    place = {"transform": right.get_yaxis_transform(), "va": "bottom"}
    right.text(0.02, result.point.eps, "tolerance", color="0.4", fontsize=8, **place)
    right.set_yscale("log")
    right.set_ylabel("gradient norm")
    for axes in (left, right):
        axes.set_xscale("symlog", linthresh=10.0)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("gradient-equivalents")
    figure.suptitle(f"{title}: {result.kind.name}")
    return figure
