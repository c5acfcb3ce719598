"""`asgld minimize`: run a method on a problem or on one's own function; say where it ended."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from asgld._minimize import Result
from asgld._minimize import minimize as run_minimize
from asgld.cli.inputs import (
    check_figure,
    check_file,
    check_numbers,
    key_value,
    read_bounds,
    read_function,
    read_start,
)
from asgld.cli.words import console, fail
from asgld.methods import METHODS, method_names
from asgld.methods import method as make_method
from asgld.problems import PROBLEMS, Problem, problem_names, problem_options
from asgld.problems import problem as make_problem
from asgld.run.files import as_bytes, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_REPLICAS = 10
_SHOWN_COORDINATES = 12
_DEFAULT: str = inspect.signature(run_minimize).parameters["method"].default


def minimize(
    problem: Annotated[
        str | None,
        typer.Argument(help=f"One of: {', '.join(problem_names())}. Leave it out with --fun."),
    ] = None,
    fun: Annotated[
        str | None,
        typer.Option(help="A function of your own, file.py:name, in torch or NumPy; needs --x0."),
    ] = None,
    x0: Annotated[
        str | None,
        typer.Option(help="Its start: 1,2.5,-3, a .npy file, or file.py:name."),
    ] = None,
    jac: Annotated[str | None, typer.Option(help="Its gradient, file.py:name.")] = None,
    bounds: Annotated[str | None, typer.Option(help='Its bounds, as "(0, None), (-1, 1)".')] = None,
    method: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(method_names())}.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Of a problem: 'random', or 'saddle': exactly at a known saddle.")
    ] = "saddle",
    saddle: Annotated[int, typer.Option(help="Which saddle, with --start saddle.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="key=value, of the problem or the method; repeatable."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Independent chains.")] = 1,
    tol: Annotated[float | None, typer.Option(help="Gradient norm of a minimum.")] = None,
    budget: Annotated[float | None, typer.Option(help="Gradient-equivalents per replica.")] = None,
    max_steps: Annotated[int, typer.Option(min=0, help="Steps of the search.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    escape: Annotated[
        bool | None, typer.Option(help="Go on from a saddle along its direction.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write a figure of the run to this file (png, svg, pdf).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write x to this file (npy).")] = None,
) -> None:
    """Minimize a built-in problem or your own function, and say what point was reached.

    The exit status is 0 at a minimum, 1 where the run ended elsewhere, 2 for bad usage.
    """
    given: dict[str, Any] = {"method": method, "tol": tol, "budget": budget, "escape": escape}
    try:
        check_figure(figure)
        _check_array(out)
        options = dict(key_value(text) for text in option or [])
        subject, point, theirs = _subject(problem, fun, x0, start, saddle, replicas, seed, options)
        ours = {k: v for k, v in options.items() if k not in theirs}
        check_method(_DEFAULT if method is None else method, ours)
        if fun is None and (jac or bounds):
            raise ValueError("--jac and --bounds belong to --fun")
        result = run_minimize(
            subject,
            point,
            replicas=replicas if fun is None or replicas > 1 else None,
            jac=None if jac is None else read_function(jac, "--jac"),
            bounds=read_bounds(bounds),
            max_steps=max_steps,
            seed=seed,
            progress=Console(stderr=True).is_terminal,
            **{name: value for name, value in given.items() if value is not None},
            **ours,
        )
    except (ValueError, TypeError) as error:
        fail(error)
    except RuntimeError as error:  # the user's function raised, or a backend
        fail(error, status=1)
    shown = console()
    title = f"{method or 'minimize'} on {fun or repr(subject)}"
    shown.print(_table(subject if isinstance(subject, Problem) else None, title, result))
    shown.print(result.message, soft_wrap=True)
    if fun is not None:
        _show_point(shown, result)
    if out is not None:
        np.save(out, np.asarray(result.x))
        shown.print(f"x: {out}", soft_wrap=True)
    if figure is not None:
        drawn = draw(result, title=f"{method or 'minimize'} on {fun or problem}")
        write_bytes(figure, as_bytes(drawn, figure.suffix.lower()[1:]))
        shown.print(f"figure: {figure}", soft_wrap=True)
    if not result.success:
        raise typer.Exit(1)


def _subject(
    problem: str | None,
    fun: str | None,
    x0: str | None,
    start: str,
    saddle: int,
    replicas: int,
    seed: int,
    options: dict[str, Any],
) -> tuple[Any, Any, set[str]]:
    """What is minimized, from where, and which of the options are its own."""
    if (problem is None) == (fun is None):
        raise ValueError("need a problem, or --fun file.py:name with --x0")
    if problem is None:
        assert fun is not None
        if x0 is None:
            raise ValueError("--fun needs --x0, a start")
        return read_function(fun), read_start(x0), set()
    if x0 is not None:
        raise ValueError("--x0 belongs to --fun; a problem has --start")
    known = problem_options(problem)
    mine = {name: value for name, value in options.items() if name in known}
    check_numbers(mine, _annotations(PROBLEMS[problem]))
    built = make_problem(problem, **mine)
    return built, _start(built, start, saddle, replicas, seed), set(known)


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse an unknown method and text where its options are numbers."""
    if name in METHODS:
        made = make_method(name)
        check_numbers(options, {**getattr(made, "knobs", {}), **_annotations(type(made))})
        make_method(name, **options)


def _annotations(kind: Any) -> dict[str, Any]:
    """Of the arguments of a class or function, as text."""
    parameters = inspect.signature(kind).parameters.items()
    return {name: str(p.annotation) for name, p in parameters}


def _check_array(path: Path | None) -> None:
    check_file(path, "--out")
    if path is not None and path.suffix != ".npy":
        raise ValueError(f"--out={str(path)!r}: need a name that ends in .npy")


def _show_point(shown: Console, result: Result) -> None:
    x = np.asarray(result.x)
    text = np.array2string(x, precision=8, threshold=_SHOWN_COORDINATES, separator=", ")
    shown.print(f"x = {text}", soft_wrap=True)


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


def _table(problem: Problem | None, title: str, result: Result) -> Table:
    table = Table(title=title)
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
    curvature = "not computed" if result.lambda_min is None else f"{result.lambda_min:.4g}"
    table.caption = f"{result.kind.value}\nlambda_min {curvature}"
    if problem is not None:
        minimum = problem.facts.minimum
        floor = "unknown" if minimum is None else f"{minimum:.8g}"
        table.caption += f", known minimum of f {floor}"
    return table


def draw(result: Result, *, title: str) -> Figure:
    """Values and gradient norms of all replicas against gradient-equivalents."""
    from matplotlib.figure import Figure

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
