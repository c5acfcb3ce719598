"""`asgld theory`: rates, regions and escape times for given exponents; maps; measurements."""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from asgld import theory as laws
from asgld.cli import extension
from asgld.cli.inputs import check_file, check_folder
from asgld.cli.words import console as make_console
from asgld.cli.words import fail
from asgld.run import files


class Measurement(enum.StrEnum):
    """What `--measure` runs."""

    EXPONENTS = "exponents"
    ESCAPE = "escape"


def theory(
    alpha: Annotated[float, typer.Option(help="Exponent of D in the step.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Exponent of D in the noise; inf for none.")] = 1.0,
    theta: Annotated[float, typer.Option(help="Batch growth, B_k ~ k^theta.")] = 0.0,
    method: Annotated[str, typer.Option(help="asgld, agld, asg or sgld.")] = "asgld",
    gamma: Annotated[float, typer.Option(help="Negative curvature of the saddle.")] = 0.5,
    lr: Annotated[float, typer.Option(help="Step size.")] = 0.1,
    sigma: Annotated[float, typer.Option(help="Noise.")] = 0.1,
    k0: Annotated[float, typer.Option(help="Step at which the saddle is met.")] = 0.0,
    dim: Annotated[int, typer.Option(min=1, help="Number of coordinates.")] = 64,
    variance: Annotated[float, typer.Option(help="Variance C of a gradient coordinate.")] = 0.1,
    item: Annotated[
        str | None, typer.Option(help="A published item, such as 'Theorem 3'; 'all' for a list.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Folder for the maps and curves.")] = None,
    measure: Annotated[
        Measurement | None, typer.Option(help="Measure the exponents, or the escape times.")
    ] = None,
    steps: Annotated[int, typer.Option(min=100, help="Of --measure exponents.")] = 100_000,
    replicas: Annotated[int | None, typer.Option(min=2, help="Of --measure.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows of --measure.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file for --measure.")] = None,
) -> None:
    """Say what theory promises, as published and as corrected, and measure it."""
    console = make_console()
    try:
        check_folder(plot, "--plot")
        check_file(out, "--out")
        if measure is not None:
            extension("_measure")(console, measure.value, steps, replicas, limit, out, plot)
        elif item is not None:
            _show_item(console, item)
        elif plot is not None:
            _plot(console, plot, method, theta)
        else:
            rule: dict[str, Any] = {"lr": lr, "alpha": alpha, "beta": beta, "k0": k0, "dim": dim}
            rule["sigma"] = 0.0 if method == "asg" else sigma
            rule["gradient_variance"] = 0.0 if method == "agld" else variance
            escape = _escape_table(gamma, rule)  # before anything is printed
            _advise(console, method, alpha, beta, theta)
            console.print(escape)
    except (ValueError, TypeError, OverflowError) as error:
        fail(error)


def _advise(console: Console, method: str, alpha: float, beta: float, theta: float) -> None:
    table = Table("version", "converges", "bound", "set by", title="Squared gradient after k steps")
    for version in ("published", "corrected"):
        found = laws.rate(alpha, beta, method=method, theta=theta, version=version)
        is_silent = isinstance(found.exponent, float) and math.isnan(found.exponent)
        verdict = "no statement" if is_silent else ("yes" if found.converges else "no")
        table.add_row(version, verdict, "" if is_silent else found.formula, str(found.dominant))
    console.print(table)
    console.print(found.sentence)
    anneals = beta > alpha / 2
    console.print(
        f"Temperature of the noise: sigma^2 D^{-(beta - alpha / 2):+g}; "
        + ("it anneals." if anneals else "it does not anneal: use beta > alpha/2 to converge.")
    )
    advice = laws.recommend("balanced", oracle="full" if method == "agld" else "stochastic")
    console.print(
        f"Balanced choice here: alpha={advice.alpha:g}, beta={advice.beta:g}, "
        f"bound {advice.rate.formula}."
    )


def _escape_table(gamma: float, rule: dict[str, Any]) -> Table:
    title = f"Escape from a saddle with gamma={gamma:g} met at step {rule['k0']:g}, d={rule['dim']}"
    table = Table("criterion", "median steps", "99 % have left", title=title)
    for criterion, words in (("distance", "|u'x| >= 1"), ("value", "f below the saddle")):
        times = [
            laws.escape_time(gamma, criterion=criterion, failure=failure, **rule).steps
            for failure in (0.5, 0.01)
        ]
        table.add_row(words, *(f"{float(t):,.0f}" for t in times))
    return table


def _show_item(console: Console, name: str) -> None:
    if name == "all":
        table = Table("item", "verdict", "says")
        for each in laws.items():
            table.add_row(each.name, each.verdict, each.statement)
        console.print(table)
        return
    found = laws.item(name)
    console.print(f"{found.name}: {found.verdict}")
    console.print(f"Says: {found.statement}")
    console.print(f"Why: {found.reason}")
    if found.correction:
        console.print(f"Instead: {found.correction}")


def _plot(console: Console, folder: Path, method: str, theta: float) -> None:
    from asgld.theory import plots

    drawn = {
        "region-map": plots.region_map(method=method, theta=theta),
        "rate-curves": plots.rate_curves(method=method, theta=theta),
        "escape-curves": plots.escape_curves(),
    }
    for name, figure in drawn.items():
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            files.write_bytes(path, files.as_bytes(figure, kind))
            console.print(str(path))
