"""`python -m asgld` is the `asgld` command."""

from asgld.cli import main

main()
