"""The command line: one file per verb."""

import os
import sys
from importlib import import_module

__all__ = ["main"]

ALONE = ("export", "index", "predict", "search", "serve", "train")  # verbs of one file each


def main() -> None:
    """Run the command line; Ctrl-C is answered in words even while its verbs are imported."""
    try:
        verb = sys.argv[1] if len(sys.argv) > 1 else ""
        # No plugin of another package reads along; to look for some takes time, too.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        # All verbs together take a fifth of a second to import.
        import_module(f"labelwise.cli.{verb if verb in ALONE else 'app'}")
        from labelwise.cli.start import main as run

        run()
    except KeyboardInterrupt:
        print("labelwise: stopped", file=sys.stderr)
        sys.exit(130)
