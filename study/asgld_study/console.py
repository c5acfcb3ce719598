"""What the command-line words share: bars while something runs, plain words when it cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

# Hears (stage, done, all, what).
Show = Callable[[str, int, int, str], None]


@contextlib.contextmanager
def stages(console: Console, out: Path | None = None) -> Iterator[Show]:
    """A bar for each stage; a folder that cannot be written ends the command with one line.

    Args:
        out: the folder to name in that line.
    """
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
        reason = error.strerror or str(error)
        where = error.filename or out
        console.print(f"[red]cannot write {escape(str(where))}: {escape(reason)}[/red]")
        raise typer.Exit(1) from error
