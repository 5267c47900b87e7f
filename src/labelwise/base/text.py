"""Text from strangers made safe for a terminal, a spreadsheet, a file."""

import re
import unicodedata
from collections.abc import Sequence

FORMULA = re.compile(r"'*[=+\-@\t\r]")
QUOTED = re.compile(r"'+[=+\-@\t\r]")
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format, lone surrogate, line and paragraph ends
SURROGATES = re.compile("[\ud800-\udfff]")
JOINERS = "\u200c\u200d"  # which scripts and emoji need


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one.

    >>> counted(1, "photo"), counted(1200, "photo")
    ('1 photo', '1,200 photos')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are.

    >>> listed(["cat", "dog", "owl"], 3), listed(["cat", "dog", "owl"], 1)
    ('cat, dog, owl', 'cat and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def with_slashes(path: str) -> str:
    """Return a path that Windows wrote as others write it."""
    return path if "/" in path else path.replace("\\", "/")


def for_terminal(text: str) -> str:
    r"""Return the text with all that would not be seen written as an escape.

    >>> for_terminal("dog\x1b[2J")
    'dog\\x1b[2J'
    >>> print(for_terminal("a\udcffb"))  # a byte of a file name that is not text
    a\xffb
    """
    if text.isprintable():
        return text
    return "".join(_seen(character) for character in text)


def printable(text: str) -> str:
    """Return text that can be written anywhere: lone surrogates become escapes.

    Python uses them for file names that are not UTF-8.

    >>> print(printable("caf\\udce9.jpg"))
    caf\\xe9.jpg
    """
    return SURROGATES.sub(lambda found: _seen(found[0]), text)


def one_line(text: str) -> str:
    """Return the text as one printable line.

    >>> one_line("first\\n  second")
    'first second'
    """
    return for_terminal(" ".join(text.split()))


def one_line_of(error: BaseException) -> str:
    """Return all that an error says as one printable line, its class where it says nothing.

    >>> one_line_of(ValueError("no such file\\nsee above")), one_line_of(KeyboardInterrupt())
    ('no such file see above', 'KeyboardInterrupt')
    """
    return one_line(str(error)) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, its class where it says nothing.

    >>> first_line(ValueError("no such file\\nsee above")), first_line(KeyboardInterrupt())
    ('no such file', 'KeyboardInterrupt')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shortened(text: str, most: int = 2000) -> str:
    """Return the text with its middle left out where it is long: the way out stands at its end.

    >>> shortened("a" * 30 + "; use -o", 20)
    'aaaaaaaaaa ... se -o'
    """
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 5]} ... {text[-tail:]}"


def as_cell(text: str) -> str:
    """Return the text for a cell of a table; an apostrophe keeps it from being a formula.

    >>> as_cell("=1+1"), as_cell("dog")
    ("'=1+1", 'dog')
    """
    return f"'{text}" if FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """Return the text that :func:`as_cell` made a cell of.

    >>> from_cell("'=1+1"), from_cell("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if QUOTED.match(cell) else cell


def _seen(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # what Python makes of a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if unicodedata.category(character) in UNSEEN and character not in JOINERS:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
