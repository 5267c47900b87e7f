"""``labelwise methods``: what can be trained with, in one sentence each."""

from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method and its options.")] = None,
) -> None:
    """List the methods, or show one with its options."""
    from labelwise.cli.text import say, show_table
    from labelwise.methods import METHODS, READINGS, find_method

    if name is None:
        rows = [
            (key, method.probabilities, method.head, method.sentence, method.source)
            for key, method in METHODS.items()
        ]
        show_table(("method", "probabilities", "head", "what it does", "source"), rows)
        say()
        say("proper: trained probabilities are calibrated. improper: calibrate before use.")
        say("auto, the default: bce, softmax, softmax-or-none or wan, whichever suits the labels.")
        say("ranking only: no probabilities until calibrated. Options: labelwise methods NAME")
        return
    method = find_method(name)
    say(f"{name}: {method.sentence}")
    say(f"source: {method.source}")
    say(f"probabilities: {method.probabilities}; head: {method.head}")
    say(f"link: {READINGS[name]}")
    if method.options:
        options = [
            (key, repr(value), ", ".join(map(repr, method.tuning.get(key, ()))))
            for key, value in method.options.items()
        ]
        show_table(("option", "default", "values tried by compare --tune"), options)
        say(f"set them with: labelwise train DATA --method {name} --set options.KEY=VALUE")
