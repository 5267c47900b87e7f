"""What a finished run shows: a short table, and the command that made it."""

import shlex
import sys
from typing import TYPE_CHECKING

from labelwise.cli.text import say, show_table

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation


def command() -> str:
    """Return the command line as it was typed, ready to be typed again."""
    return shlex.join(["labelwise", *sys.argv[1:]])


def show_exclusive(evaluation: "Evaluation") -> None:
    """Print how often sets hold the right one of labels that exclude each other."""
    for one in evaluation.exclusive:
        if one.accuracy is not None:
            between = "" if one.low is None else f" ({one.low:.3f} to {one.high:.3f})"
            say(
                f"{', '.join(one.labels)}: right in {one.right:,} of {one.known:,} photos, "
                f"{one.accuracy:.3f}{between}; {one.broken:,} sets break the rule"
            )


def summarise(evaluation: "Evaluation") -> None:
    """Print the headline figures, each with its interval."""
    rows = []
    for figure in evaluation.headline:
        missing = "infinite" if evaluation.is_infinite(figure) else "undefined"
        value = missing if figure.value is None else f"{figure.value:.4f}"
        known = figure.low is not None and figure.high is not None
        rows.append((figure.name, value, f"{figure.low:.4f} to {figure.high:.4f}" if known else ""))
    say()
    show_table(("on " + (evaluation.data.split or "all rows"), "value", "95 % interval"), rows)
    show_exclusive(evaluation)
    for figure in evaluation.headline:
        if evaluation.final is not None and evaluation.is_infinite(figure):
            count = evaluation.final.infinite
            sure = "1 entry was" if count == 1 else f"{count:,} entries were"
            say(f"{figure.name} is infinite: {sure} given probability 0 or 1 and wrong")
    for note in evaluation.notes:
        say(note)
