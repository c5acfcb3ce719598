"""`asgld reproduce`: every experiment of the paper, every claim judged, one page."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from asgld_study.experiments.declare import SIZES
from asgld_study.experiments.declared import EXPERIMENTS


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
    from asgld_study.reproduction import runner
    from asgld_study.reproduction.write import summary_lines, write

    console = Console()
    if list_names:
        for experiment in EXPERIMENTS:
            console.print(f"{experiment.name:12s} {experiment.question}", soft_wrap=True)
        return
    try:
        chosen = runner.choose(only or [])
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
    columns = (
        TextColumn("{task.description:32.32s}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {}

        def show(stage: str, done: int, total: int, what: str) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=total)
            progress.update(
                bars[stage], completed=done, total=total, description=f"{stage}: {what}"
            )

        outcomes = runner.run(
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
        path, findings = write(
            outcomes,
            size=name,
            out=out,
            times=times,
            jobs=processes,
            report=partial(show, "report"),
        )
    for outcome in outcomes.values():
        for reason in outcome.errors[:1]:
            console.print(f"[red]{outcome.experiment.name} failed: {escape(reason)}[/red]")
    console.print("verdicts: " + ", ".join(line.strip() for line in summary_lines(findings)))
    console.print(f"{time.perf_counter() - clock:.0f} s; report: {path}", soft_wrap=True)
