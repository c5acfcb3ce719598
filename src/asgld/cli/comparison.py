"""`asgld compare --fun`: methods side by side on a function of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from asgld._compare import DEFAULT_METHODS
from asgld._compare import compare as run_compare
from asgld.cli.inputs import (
    check_figure,
    check_file,
    key_value,
    read_bounds,
    read_function,
    read_start,
)
from asgld.cli.problem import check_method
from asgld.cli.words import console, fail, say_error
from asgld.methods import method_names
from asgld.run.files import as_bytes, as_csv, write_bytes, write_text

_DEFAULT = ",".join(str(name) for name in DEFAULT_METHODS)


def compare(
    fun: Annotated[
        str | None,
        typer.Option(help="A function of your own, file.py:name, in torch or NumPy; needs --x0."),
    ] = None,
    x0: Annotated[
        str | None, typer.Option(help="Its start: 1,2.5,-3, a .npy file, or file.py:name.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(help=f"Comma-separated; 'all', or of: auto, {', '.join(method_names())}."),
    ] = _DEFAULT,
    jac: Annotated[str | None, typer.Option(help="Its gradient, file.py:name.")] = None,
    bounds: Annotated[str | None, typer.Option(help='Its bounds, as "(0, None), (-1, 1)".')] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="method.key=value, in place of what is measured; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 10,
    budget: Annotated[float, typer.Option(help="Gradient-equivalents of each run.")] = 1000.0,
    max_seconds: Annotated[
        float | None, typer.Option(help="Of all runs of one method together.")
    ] = None,
    tol: Annotated[
        float | None, typer.Option(help="Gradient norm of a minimum; by default relative.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Write a figure to this file (png, svg, pdf).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a row for each method and seed to this file (CSV).")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            help="A built-in problem instead of --fun: the study of the paper then compares, with "
            "options of its own; see asgld compare --problem octopus --help."
        ),
    ] = None,
) -> None:
    """Compare methods on your own function: same start, same budget, same judge.

    The exit status is 0 if every method ran, wherever it ended, 1 if one failed, 2 for bad usage.
    """
    assert problem is None  # such a call goes to the study
    try:
        if fun is None or x0 is None:
            raise ValueError("need --fun file.py:name with --x0, or --problem")
        check_figure(figure)
        check_file(out, "--out")
        if out is not None and out.suffix.lower() != ".csv":
            raise ValueError(f"--out={str(out)!r}: need a name that ends in .csv")
        found = run_compare(
            read_function(fun),
            read_start(x0),
            _methods(methods, setting or []),
            jac=None if jac is None else read_function(jac, "--jac"),
            bounds=read_bounds(bounds),
            seeds=seeds,
            budget=budget,
            max_seconds=max_seconds,
            tol=tol,
            seed=seed,
            progress=Console(stderr=True).is_terminal,
        )
    except (ValueError, TypeError) as error:
        fail(error)
    except RuntimeError as error:  # the user's function raised
        fail(error, status=1)
    shown = console()
    shown.print(found.table(), soft_wrap=True)
    if out is not None:
        write_text(out, as_csv(found.rows))
        shown.print(f"table: {out}", soft_wrap=True)
    if figure is not None:
        write_bytes(figure, as_bytes(found.plot(), figure.suffix.lower()[1:]))
        shown.print(f"figure: {figure}", soft_wrap=True)
    for reason in found.failures:
        say_error(f"asgld: {reason}")
    if found.failures:
        raise typer.Exit(1)


def _methods(names: str, settings: list[str]) -> dict[str, Any]:
    """Label -> name and options; a name that comes again is numbered."""
    chosen = (
        ["auto", *method_names()]
        if names.strip() == "all"
        else [n.strip() for n in names.split(",")]
    )
    options: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for text in settings:
        key, value = key_value(text)
        name, _, option = key.rpartition(".")
        if name not in options:
            raise ValueError(f"--set={text!r}: need method.key=value, with one of the methods")
        options[name][option] = value
    for name, mine in options.items():
        check_method(name, mine)
    labeled = {}
    for number, name in enumerate(chosen):
        copies = chosen[:number].count(name)
        labeled[f"{name} #{copies + 1}" if copies else name] = (name, options[name])
    return labeled
