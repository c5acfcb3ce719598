"""`asgld minimize`: run a method on a problem or on one's own function; say where it ended."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from asgld._minimize import minimize as run_minimize
from asgld._result import Result
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

_SHOWN_REPLICAS = 10
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
        str | None, typer.Option(help=f"auto, the default, or one of: {', '.join(method_names())}.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Of a problem: 'saddle', the default: exactly at a known saddle; or 'random'."
        ),
    ] = None,
    saddle: Annotated[
        int | None, typer.Option(help="Which saddle, with --start saddle; by default 0.")
    ] = None,
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
        try:
            check_method(_DEFAULT if method is None else method, ours)
        except TypeError as error:
            raise TypeError(f"{error}{_known_to(problem, theirs)}") from error
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
    _show(shown, f"{method or _DEFAULT} on {fun or repr(subject)}", result)
    if isinstance(subject, Problem) and subject.facts.minimum is not None:
        shown.print(f"the known minimum of f is {subject.facts.minimum:.8g}")
    if out is not None:
        np.save(out, np.asarray(result.x))
        shown.print(f"x: {out}", soft_wrap=True)
    if figure is not None:
        write_bytes(figure, as_bytes(result.plot(), figure.suffix.lower()[1:]))
        shown.print(f"figure: {figure}", soft_wrap=True)
    if not result.success:
        raise typer.Exit(1)


def _subject(
    problem: str | None,
    fun: str | None,
    x0: str | None,
    start: str | None,
    saddle: int | None,
    replicas: int,
    seed: int,
    options: dict[str, Any],
) -> tuple[Any, Any, set[str]]:
    """What is minimized, from where, and which of the options are its own."""
    if problem is not None and fun is not None:
        raise ValueError(f"both the problem {problem!r} and --fun={fun!r} are given: need one")
    if problem is None and fun is None:
        raise ValueError("need a problem, or --fun file.py:name with --x0")
    if problem is None:
        assert fun is not None
        if x0 is None:
            raise ValueError("--fun needs --x0, a start")
        for name, value in (("--start", start), ("--saddle", saddle)):
            if value is not None:
                raise ValueError(f"{name}={value!r} belongs to a problem: --fun has --x0")
        return read_function(fun), read_start(x0), set()
    if x0 is not None:
        raise ValueError("--x0 belongs to --fun; a problem has --start")
    known = problem_options(problem)
    mine = {name: value for name, value in options.items() if name in known}
    check_numbers(mine, _annotations(PROBLEMS[problem]))
    built = make_problem(problem, **mine)
    if start == "random" and saddle is not None:
        raise ValueError(f"--saddle={saddle}: need --start saddle, not random")
    return built, _start(built, start or "saddle", saddle or 0, replicas, seed), set(known)


def _known_to(problem: str | None, options: set[str]) -> str:
    if problem is None:
        return ""
    return f"; problem {problem!r} has {', '.join(sorted(options)) or 'no options'}"


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse an unknown method, its unknown options, and text where these are numbers."""
    if name == _DEFAULT and options:
        raise TypeError(f"unknown option {min(options)!r}: method {name!r} takes none")
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


def _show(shown: Console, title: str, result: Result) -> None:
    shown.print(f"{title}: {result.kind.value}", soft_wrap=True)
    shown.print(str(result), soft_wrap=True)
    shown.print(result.message, soft_wrap=True)
    values, spent = np.asarray(result.all_fun), result.counts.spent
    if len(values) == 1:
        return
    table = Table("replica", "f", "gradient-equivalents")
    for replica in np.argsort(values)[:_SHOWN_REPLICAS].tolist():
        table.add_row(str(replica), f"{values[replica]:.8g}", f"{spent[replica]:.1f}")
    shown.print(table)
