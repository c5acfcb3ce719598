"""The command line. Some words are the library's own, others come from packages that are installed.

A package adds a word by an entry point of the group `asgld.commands`. The study of the paper adds
`reproduce`, `compare` and `table1`, and the measurements behind `asgld theory --measure`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

# The order in `asgld --help`.
_WORDS = ("reproduce", "minimize", "compare", "table1", "theory", "doctor")
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
    ours: dict[str, Callable[..., Any]] = {
        "minimize": minimize,
        "theory": theory,
        "doctor": examine,
    }
    others = [entry.name for entry in entry_points(group=_GROUP) if not entry.name.startswith("_")]
    for word in dict.fromkeys((*_WORDS, *others)):
        try:
            app.command(word)(ours.get(word) or extension(word))
        except ImportError as error:
            _add_absent(app, word, str(error))
    return app


def extension(word: str) -> Callable[..., Any]:
    """The function that an installed package offers under a word; else an ImportError."""
    for entry in entry_points(group=_GROUP, name=word):
        loaded: Callable[..., Any] = entry.load()
        return loaded
    raise ImportError(
        f"`{word.lstrip('_')}` is part of the study of the paper, which is not installed: pip "
        "install asgld-study, or pip install ./study in a checkout of the repository"
    )


def _add_absent(app: typer.Typer, word: str, reason: str) -> None:
    """Add a word that says, with any arguments, why it cannot be used."""
    import typer

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(word, help=reason, context_settings=settings, add_help_option=False)
    def absent() -> None:
        typer.echo(reason, err=True)
        raise typer.Exit(1)


def key_value(text: str) -> tuple[str, Any]:
    """Read an option as it is typed; a value that is no Python literal is text.

    >>> key_value("lr=0.1"), key_value("loss=cauchy")
    (('lr', 0.1), ('loss', 'cauchy'))
    """
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"option {text!r}: need key=value, for example lr=0.1")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def main() -> None:
    """Run the command line; a missing package and a failing disk are one line each."""
    try:
        app = build_app()
    except ImportError as error:
        sys.exit(f"{error}: the asgld command needs typer and rich: pip install 'asgld[cli]'")
    try:
        app()
    except ImportError as error:  # a package that one command needs; the message names the extra
        sys.exit(str(error))
    except OSError as error:  # a folder that cannot be written, a full disk
        sys.exit(f"asgld: {error}")
