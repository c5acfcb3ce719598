"""`asgld reproduce`: the paper's simulation study, as a table and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from asgld import report
from asgld.experiments import paper

# (replicas, steps)
REDUCED = (20, 2_000)
FULL = (100, 20_000)


def reproduce(
    full: Annotated[
        bool, typer.Option(help="100 replicas of 20,000 steps, not 20 of 2,000")
    ] = False,
    out: Annotated[Path, typer.Option(help="folder for table and figures")] = Path("reproduction"),
    seed: Annotated[int, typer.Option(min=0, help="of data, batches and noise")] = 0,
    replicas: Annotated[int | None, typer.Option(min=2, help="data sets")] = None,
    steps: Annotated[int | None, typer.Option(min=10, help="iterations")] = None,
) -> None:
    """Run the paper's simulation study."""
    console = Console()
    default_replicas, default_steps = FULL if full else REDUCED
    replicas, steps = replicas or default_replicas, steps or default_steps
    count = len(paper.CONFIGURATIONS)
    console.print(
        f"The paper's simulation study: {count} configurations, {replicas} data sets of 10,000, "
        f"{steps:,} iterations"
    )
    outcomes = []
    columns = (TextColumn("{task.description:32s}"), BarColumn(), TimeElapsedColumn(),
               TextColumn("elapsed, left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=count * steps)
        done = 0

        def show(configuration: paper.Configuration, step: int) -> None:
            if step % 50 == 0 or step == steps:
                progress.update(task, description=configuration.label, completed=done + step)

        for outcome in paper.run_study(replicas=replicas, steps=steps, seed=seed, report=show):
            outcomes.append(outcome)
            done += steps
            name = f"error-{outcome.configuration.number.zfill(2)}"
            figure = report.study_figure(outcome)
            for kind in ("png", "svg"):
                report.write_bytes(
                    out / "figures" / f"{name}.{kind}", report.as_bytes(figure, kind)
                )

    rows = report.study_rows(outcomes)
    report.write_text(out / "study.csv", report.as_csv(rows))
    report.write_text(out / "study.md", report.as_markdown(rows))
    report.write_bytes(
        out / "figures" / "study.png", report.as_bytes(report.study_overview(outcomes), "png")
    )
    console.print(_table(rows, steps))
    console.print(
        "error = (x1 - 0.1)^2 + (x2 - 10)^2 at the end, over replicas; hit = median of the "
        f"first iteration with error < {paper.HIT}; near = share of the last tenth of the run "
        f"with error < {paper.HIT}"
    )
    console.print(f"table: {out / 'study.csv'}   figures: {out / 'figures'}")


def _table(rows: list[dict[str, object]], steps: int) -> Table:
    table = Table(title=f"Error after {steps:,} iterations", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("configuration", no_wrap=True)
    for name in ("q10", "median", "q90", "hit", "near"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        fields = ("label", "q10", "median", "q90", "median_hit", "tail_share")
        table.add_row(*(report.format_number(row[name]) for name in fields))
    return table
