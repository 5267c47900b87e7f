"""The command line: one file a verb."""

from labelwise.cli.app import main

__all__ = ["main"]
