"""The command line: one file per verb."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C is answered in words even while its verbs are imported."""
    try:
        from labelwise.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("labelwise: stopped", file=sys.stderr)
        sys.exit(130)
