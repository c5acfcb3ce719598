"""The command line. The library's own words are here; others come from packages that are installed.

A package adds a word by an entry point of the group `asgld.commands`. The study of the paper adds
`reproduce`, `table1` and `compare`, and what `asgld theory --measure` runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

# Words of the study; without it they say how to get it.
STUDY = ("reproduce", "compare", "table1")
_GROUP = "asgld.commands"


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    import typer

    from asgld.cli.doctor import examine
    from asgld.cli.problem import minimize
    from asgld.cli.statements import theory

    app = typer.Typer(
        help="Adaptive stochastic gradient Langevin dynamics.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for command in (minimize, theory):
        app.command()(command)
    app.command("doctor")(examine)
    found = {entry.name: entry for entry in entry_points(group=_GROUP)}
    for word in STUDY:
        if word not in found:
            options = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(word, context_settings=options, help=_missing(word))(_absent(word))
    for word, entry in found.items():
        if not word.startswith("_"):
            app.command(word)(entry.load())
    return app


def extension(word: str) -> Callable[..., Any]:
    """What an installed package offers under a word; ImportError says how to get it."""
    for entry in entry_points(group=_GROUP, name=word):
        loaded: Callable[..., Any] = entry.load()
        return loaded
    raise ImportError(_missing(word.lstrip("_")))


def _missing(word: str) -> str:
    return (
        f"`{word}` is part of the study of the paper, which is not installed: pip install "
        "asgld-study, or pip install ./study in a checkout of the repository"
    )


def _absent(word: str) -> Callable[[], None]:
    def absent() -> None:
        raise ImportError(_missing(word))

    return absent


def main() -> None:
    """Run the command line, or say which extra is missing."""
    try:
        app = build_app()
    except ImportError as error:
        sys.exit(f"{error}: the asgld command needs typer and rich: pip install 'asgld[cli]'")
    try:
        app()
    except ImportError as error:  # a package that one command needs; the message names the extra
        sys.exit(str(error))
