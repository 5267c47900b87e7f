"""The command line: one file per verb."""

from labelwise.cli.app import main

__all__ = ["main"]
