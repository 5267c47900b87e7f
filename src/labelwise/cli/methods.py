"""``labelwise papers methods``: the methods, read from methods.json without torch."""

import json
from importlib.resources import files
from typing import Annotated

import typer

from labelwise.cli.command import papers_app, verb
from labelwise.cli.text import next_steps, say, show_table
from labelwise.errors import SettingsError


@verb(papers_app, "papers methods", "papers methods spa")
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method and its options.")] = None,
) -> None:
    """List the methods that `train` knows, or show one with its options.

    They are read from methods.json, which a test compares with the methods: without torch.
    """
    known = json.loads((files("labelwise.cli") / "methods.json").read_text("utf-8"))
    if name is None:
        rows = [
            (key, *(method[field] for field in ("probabilities", "head", "sentence", "source")))
            for key, method in known.items()
        ]
        show_table(("method", "probabilities", "head", "what it does", "source"), rows)
        say("\nproper: trained probabilities are calibrated. improper: calibrate before use.")
        say("ranking only: no probabilities until calibrated.")
        say("auto, the default: bce, softmax, softmax-or-none or wan, whichever suits the labels.")
        next_steps("papers methods NAME", "train DATA --method NAME")
        return
    if name not in known:
        from labelwise.types import nearest

        raise SettingsError(f"unknown method {name!r}{nearest(name, known)}")
    method = known[name]
    say(f"{name}: {method['sentence']}")
    say(f"source: {method['source']}")
    say(f"probabilities: {method['probabilities']}; head: {method['head']}")
    say(f"link: {method['link']}")
    settings = ""
    if method["options"]:
        options = [(key, *values) for key, values in method["options"].items()]
        show_table(("option", "default", "values tried by compare --tune"), options)
        settings = " --set options.KEY=VALUE"
    next_steps(f"train DATA --method {name}{settings}")
