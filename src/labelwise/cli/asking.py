"""Questions about photos in the terminal: yes, no, unsure, undo or stop."""

from typing import TYPE_CHECKING, Literal

import typer

if TYPE_CHECKING:
    from labelwise.photos.check_log import Answer


def ask(question: str) -> "Answer | Literal['undo', 'stop']":
    """Return what a person answers; the end of the input, or Ctrl-C, is ``stop``."""
    from labelwise.cli.text import say
    from labelwise.photos.answer_tables import ANSWER_WORDS

    while True:
        try:
            word = typer.prompt(f"{question}\n  y, n, u, undo or stop").strip().lower()
        except typer.Abort:
            return "stop"
        if word == "undo" or word == "stop":
            return "undo" if word == "undo" else "stop"
        if word in ANSWER_WORDS:
            return ANSWER_WORDS[word]
        say(f"{word!r} is not an answer; type y, n, u, undo or stop")
