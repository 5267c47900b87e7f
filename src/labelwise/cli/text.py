"""What verbs say and ask: tables, notes, complaints, next commands; plain outside a terminal."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from labelwise.base.text import counted, for_terminal, one_line, shortened

if TYPE_CHECKING:
    from labelwise.answers.log import Answer


def say(text: str = "") -> None:
    """Print text to the output, with what a terminal would act on escaped."""
    print("\n".join(map(for_terminal, text.split("\n"))), flush=True)


def complain(sentence: str, *lines: str) -> None:
    """Print one sentence, on one line of at most 2,000 letters, to the error output.

    Further ``lines`` are whole: what a person copies from them must not be cut.
    """
    from rich.console import Console
    from rich.text import Text

    Console(file=sys.stderr, soft_wrap=True).print(
        Text.assemble(("labelwise: ", "bold red"), shortened(one_line(sentence))), highlight=False
    )
    for line in lines:
        print(for_terminal(line), file=sys.stderr)


def caution(*sentences: str | None) -> None:
    """Print what must stand beside answers, if anything, where it spoils no output."""
    for sentence in filter(None, sentences):
        complain(sentence)


def tell(*sentences: str | None) -> None:
    """Print each sentence that there is."""
    for sentence in filter(None, sentences):
        say(sentence)


def next_steps(*commands: str) -> None:
    """End with the commands that are most useful now, as they are typed."""
    for position, command in enumerate(commands):
        say(f"{'Next:' if position == 0 else '     '} {program()} {command}")


def next_name(name: str) -> Path:
    """Return a name for the next file of a kind: questions-2.csv after questions.csv."""
    path = Path(name)
    stem, _, number = path.stem.rpartition("-")
    is_later = bool(stem) and number.isdecimal()
    return path.with_stem(f"{stem}-{int(number) + 1}" if is_later else f"{path.stem}-2")


def program() -> str:
    """Return what starts this program: its name, or the path typed if that is not on PATH."""
    on_path, typed = shutil.which("labelwise"), Path(sys.argv[0])
    if typed.stem != "labelwise" or not typed.is_file():  # python -m labelwise, and programs
        return "labelwise"
    reached = on_path is not None and Path(on_path).samefile(typed)
    return "labelwise" if reached else quoted(typed)


def quoted(*words: object) -> str:
    r"""Return words of a command line, such as paths, quoted where a shell needs it.

    Of names with bytes that a terminal does not show, bash and zsh are given the bytes. A file
    or folder with a name such as ``-x`` is called ``./-x``: verbs would take ``-x`` for an option.

    >>> print(quoted("a b", "caf\udce9.csv"))
    'a b' $'caf\xe9.csv'
    """
    return " ".join(map(_quoted, map(str, words)))


def _quoted(word: str) -> str:
    if word.startswith("-") and os.path.lexists(word):
        word = f"./{word}"
    if word.isprintable():
        return shlex.quote(word)
    plain = re.compile(rb"[\w ./:=-]")
    octets = (bytes([octet]) for octet in os.fsencode(word))
    shown = (o.decode() if plain.match(o) else f"\\x{o.hex()}" for o in octets)
    return f"$'{''.join(shown)}'"


def command() -> str:
    """Return the command line as it was typed, ready to be typed again."""
    return quoted("labelwise", *sys.argv[1:])


def ask(question: str) -> "Answer | Literal['undo', 'stop']":
    """Return what a person answers; the end of the input, or Ctrl-C, is ``stop``."""
    from labelwise.answers.log import ANSWER_WORDS

    while True:
        say(question)
        try:
            word = typer.prompt("  y, n, d (don't know), u (undo) or s (stop)").strip().lower()
        except typer.Abort:
            return "stop"
        if word in ("u", "undo"):  # as on the pages
            return "undo"
        if word in ("s", "stop"):
            return "stop"
        if word in ANSWER_WORDS:
            return ANSWER_WORDS[word]
        say(f"{word!r} is not an answer; type y, n, d, u or s")


def stopped(sentence: str) -> typer.Exit:
    """Say that Ctrl-C ended the command, and return what ends it."""
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:  # the first process speaks for all
        complain(sentence)
    return typer.Exit(130)


@contextmanager
def resumable(folder: Path | str) -> Iterator[None]:
    """Say, if Ctrl-C stops the block, that the same command goes on in a folder that is there."""
    from labelwise.base.storage import is_uri

    try:
        yield
    except KeyboardInterrupt:
        kept = is_uri(str(folder)) or Path(folder).exists()
        how = f" to go on, {folder} keeps what is done" if kept else ""
        raise stopped(f"stopped; run the same command again{how}") from None


def number(value: float | None, form: str = ".4f") -> str:
    """Return a number as a table shows it."""
    return "undefined" if value is None else format(value, form)


def in_all(seconds: float, jobs: int) -> str:
    """Return the time of all runs in words; side by side they share one device."""
    gain = ", less what running side by side saves" if jobs > 1 else ""
    return f"about {duration(seconds)} in all{gain}"


def duration(seconds: float) -> str:
    """Return a time in the unit people would name it in."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return counted(round(seconds), "second")


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    names: int = 0,
) -> None:
    """Print a table; a wide one is turned if its first ``names`` columns name the rows."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [
        [one_line(cell) if isinstance(cell, str) else f"{cell:,}" for cell in line]
        for line in (columns, *rows)
    ]
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    if names and _width(lines) > console.width:
        named = ["", *(" ".join(filter(None, line[:names])) for line in lines[1:])]
        beside = [[name, *line[names:]] for name, line in zip(named, lines, strict=True)]
        lines = min(lines, [list(column) for column in zip(*beside, strict=True)], key=_width)
    words = None if title is None else Text(one_line(title), "italic")
    table = Table(title=words, title_justify="left", box=None, pad_edge=False)
    for column, *cells in zip(*lines, strict=True):
        right = bool(cells) and all(map(_is_number, cells))
        table.add_column(Text(column), justify="right" if right else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    console.print(table, highlight=False)


def _width(lines: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2


def _is_number(cell: str) -> bool:
    if cell in ("–", "∞"):
        return True
    try:
        float(cell.partition(" ± ")[0].rstrip("% ").replace(",", "") or "nan")
    except ValueError:
        return False
    return True
