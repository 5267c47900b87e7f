"""The command line is put together once per process of tests, not again for each command.

Typer reads the options of all verbs each time: 45 ms, which a program spends once in its life and a
process of tests for a thousand commands. What it makes keeps nothing of a command that was run.
"""

from functools import cache

import typer.main
import typer.testing


def put_together_once() -> None:
    """Have every call of a Typer application in this process use the same commands."""
    typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)
