"""How the command line looks: the group of words, errors in one line, text that is only text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

# typer brings a click of its own, or uses that which is installed: ask it for its classes.
UsageError: Any = typer.BadParameter.__mro__[1]
ClickError: Any = typer.BadParameter.__mro__[2]

COMPARE = "compare"
# The study's command of that name, for `asgld compare --problem`; no word of its own.
COMPARE_PROBLEMS = "_compare-problems"


class Words(TyperGroup):
    """The words of `asgld`. An error of usage is one line on stderr, and the status is 2."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] == [COMPARE] and any(a.split("=")[0] == "--problem" for a in args):
            _, command, rest = super().resolve_command(ctx, [COMPARE_PROBLEMS, *args[1:]])
            return COMPARE, command, rest
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def begin() -> Any:
            return super(Words, self).main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )

        if not standalone_mode:
            return begin()
        try:
            status = begin()
        except ClickError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(2)
            path = getattr(getattr(error, "ctx", None), "command_path", None) or "asgld"
            say_error(f"{path}: {error.format_message().rstrip('.')}; see `{path} --help`")
            sys.exit(error.exit_code)
        except typer.Abort:
            say_error("asgld: aborted")
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)


def console() -> Console:
    """A console on which what users typed is text: no markup, no emoji, no colors of its own."""
    return Console(markup=False, highlight=False, emoji=False)


def say_error(text: str) -> None:
    """One line on stderr."""
    print(" ".join(text.split()), file=sys.stderr)


def fail(error: object, status: int = 2) -> NoReturn:
    """End a command with one line on stderr; status 2 is bad usage."""
    say_error(f"asgld: {error}")
    raise typer.Exit(status)
