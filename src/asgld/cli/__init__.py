"""The command line. Some words are the library's own, others come from packages that are installed.

A package adds a word by an entry point of the group `asgld.commands`. The study of the paper adds
`reproduce` and `table1`, what `asgld compare --problem` does, and the measurements behind
`asgld theory --measure`.

======  ======================================================================================
status  meaning
======  ======================================================================================
0       success: a minimum was found, every method or measurement ran
1       the run ended elsewhere (at a saddle, without a verdict), or a part of it failed
2       bad usage: an option, a function, a start or a file that cannot be used
======  ======================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from asgld.cli.inputs import key_value as key_value

if TYPE_CHECKING:
    import typer

# The order in `asgld --help`.
_WORDS = ("reproduce", "minimize", "compare", "table1", "theory", "doctor")
_GROUP = "asgld.commands"


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    import typer

    from asgld.cli.comparison import compare
    from asgld.cli.doctor import examine
    from asgld.cli.problem import minimize
    from asgld.cli.statements import theory
    from asgld.cli.words import COMPARE, COMPARE_PROBLEMS, Words

    app = typer.Typer(
        cls=Words,
        help="Adaptive stochastic gradient Langevin dynamics. The exit status is 0 for success, 1 "
        "where a run ended elsewhere than at a minimum or a part of it failed, 2 for bad usage.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    ours: dict[str, Callable[..., Any]] = {
        "minimize": minimize,
        COMPARE: compare,
        "theory": theory,
        "doctor": examine,
    }
    others = [entry.name for entry in entry_points(group=_GROUP) if not entry.name.startswith("_")]
    for word in dict.fromkeys((*_WORDS, *others)):
        try:
            app.command(word)(ours.get(word) or extension(word))
        except ImportError as error:
            _add_absent(app, word, str(error))
    try:
        app.command(COMPARE_PROBLEMS, hidden=True)(extension(COMPARE))
    except ImportError as error:
        _add_absent(app, COMPARE_PROBLEMS, str(error).replace("`compare`", "`compare --problem`"))

    @app.callback()
    def begin(
        version: bool = typer.Option(
            False, "--version", is_eager=True, callback=_show_version, help="Show the version."
        ),
    ) -> None:
        pass

    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        import typer

        import asgld

        typer.echo(f"asgld {asgld.__version__}")
        raise typer.Exit


def extension(word: str) -> Callable[..., Any]:
    """The function that an installed package offers under a word; else an ImportError."""
    for entry in entry_points(group=_GROUP, name=word):
        loaded: Callable[..., Any] = entry.load()
        return loaded
    raise ImportError(
        f"`{word.lstrip('_')}` is part of the study of the paper, which is not installed: pip "
        "install asgld-study, or ./study in a clone"
    )


def _add_absent(app: typer.Typer, word: str, reason: str) -> None:
    """Add a word that says, with any arguments, why it cannot be used."""
    import typer

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    is_hidden = word.startswith("_")

    @app.command(
        word, help=reason, context_settings=settings, add_help_option=False, hidden=is_hidden
    )
    def absent() -> None:
        typer.echo(reason, err=True)
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a missing package and a failing disk are one line each."""
    try:
        app = build_app()
    except ImportError as error:
        sys.exit(
            f"{error}: the asgld command needs typer and rich: pip install 'asgld[cli]', or "
            "'.[cli]' in a clone"
        )
    try:
        app()
    except ImportError as error:  # a package that one command needs; the message names the extra
        sys.exit(str(error))
    except OSError as error:  # a folder that cannot be written, a full disk
        sys.exit(f"asgld: {error}")
