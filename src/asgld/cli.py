"""The command line. Each command is a function in `asgld.commands`; here they get their names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    import typer

    from asgld.commands.compare import compare, table1
    from asgld.commands.doctor import doctor
    from asgld.commands.minimize import minimize
    from asgld.commands.reproduce import reproduce
    from asgld.commands.theory import theory

    app = typer.Typer(
        help="Adaptive stochastic gradient Langevin dynamics.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for command in (reproduce, minimize, compare, table1, theory, doctor):
        app.command()(command)
    return app


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
