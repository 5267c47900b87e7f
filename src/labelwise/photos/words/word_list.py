"""Words, each with the texts that describe it.

    dog                              described by "a photo of a dog" and "dog"
    dog: a dog, a puppy              described by these texts alone
    dog: a dog, a puppy; pet         and a kind of pet, which is one of the words too
    dog; pet                         the usual texts, and a kind of pet

One word per line; empty lines and lines that start with # are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from labelwise.base.text import for_terminal, shortened
from labelwise.errors import DataError
from labelwise.tables.reading import reads_as_columns
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace, nearest

TEMPLATES = ("a photo of a {}", "{}")
MOST_WORDS = 1000  # beyond, words are too near each other to be told apart
LONGEST = 200  # letters of a word


@dataclass(frozen=True)
class Word:
    """A label, the texts that describe it, and the label it is a kind of, if any."""

    name: str
    texts: tuple[str, ...]
    parent: str | None = None


def usual_texts(name: str) -> tuple[str, ...]:
    """Return the texts that describe a name for which none were written."""
    return tuple(template.format(name) for template in TEMPLATES)


@dataclass(frozen=True)
class WordList:
    """The words of a list, in its order."""

    words: tuple[Word, ...]
    source: str = "the words"

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise DataError(f"{self.source}: {fault}")
        if self.taxonomy is not None:
            self.taxonomy.within(self.space)

    def _faults(self) -> Iterator[str]:
        if not self.words:
            yield "there are no words; write one per line, such as: dog"
        if len(self.words) > MOST_WORDS:
            start = "start with those you search for, and add others later"
            yield f"a list may have {MOST_WORDS:,} words, got {len(self.words):,}; {start}"
        seen: dict[str, str] = {}
        for word in self.words:
            folded = " ".join(normalize("NFC", word.name).casefold().split())
            if folded in seen:
                yield f"{word.name!r} and {seen[folded]!r} are the same word"
            seen[folded] = word.name
            if not reads_as_columns([word.name]):  # answers are kept in a label table
                column = (
                    "already means something as a column of the tables that answers are kept in"
                )
                other = f"'a {word.name}: {', '.join(usual_texts(word.name))}'"
                yield f"{word.name!r} {column}; name the word otherwise, as in {other}"
        for word in self.words:
            if word.parent is not None and word.parent not in self.names:
                known = f"one of the words{nearest(word.parent, self.names)} Add a line for it"
                yield f"{word.name!r} is a kind of {word.parent!r}, which is not {known}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(word.name for word in self.words)

    @property
    def space(self) -> LabelSpace:
        return LabelSpace(self.names)

    @property
    def taxonomy(self) -> Taxonomy | None:
        parents = {word.name: word.parent for word in self.words if word.parent is not None}
        return Taxonomy(parents) if parents else None

    @classmethod
    def of(cls, *names: str) -> "WordList":
        return cls(tuple(Word(name, usual_texts(name)) for name in names))

    @classmethod
    def read(cls, path: str | Path) -> "WordList":
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            why = "there is no such file; write one with a word per line"
        except UnicodeDecodeError as error:
            why = f"a list must be in UTF-8, and byte {error.start + 1:,} is not; save it as UTF-8"
        except OSError as error:
            why = f"the words cannot be read ({error.strerror})"
        else:
            return cls(tuple(_words_of(text, str(path))), str(path))
        raise DataError(f"{path}: {why}")

    def text(self) -> str:
        text = ""
        for word in self.words:
            own = "" if word.texts == usual_texts(word.name) else ": " + ", ".join(word.texts)
            text += word.name + own + (f"; {word.parent}" if word.parent else "") + "\n"
        return text


def _words_of(text: str, source: str) -> Iterator[Word]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        before, _, after = line.partition(";")
        name, colon, written = before.partition(":")
        name, parent = name.strip(), after.strip()
        texts = tuple(text.strip() for text in written.split(",") if text.strip())
        why = ""
        if not name:
            why = f"a line must start with a word, got {line!r}"
        elif "," in name:
            why = f"a word must have no comma, got {shortened(name)!r}; write one word per line"
        elif '"' in name:
            why = f"a word must have no quotation marks, got {shortened(name)!r}; leave them out"
        elif len(name) > LONGEST:
            why = f"a word may have {LONGEST} letters, got {len(name):,} ({shortened(name, 40)!r})"
        elif colon and not texts:
            why = f"after the colon of {name!r} must come texts that describe it; or leave it out"
        elif ";" in line and (not parent or ";" in parent or "," in parent):
            why = f"after the semicolon must come one word that {name!r} is of, got {parent!r}"
        elif any(for_terminal(text) != text for text in (name, *texts, parent)):
            why = "a line must have no tabs or control characters between its words, got "
            why += f"{shortened(for_terminal(line))!r}; write one word per line"
        if why:
            raise DataError(f"{source}, line {number}: {why}")
        yield Word(name, texts or usual_texts(name), parent or None)
