"""open_table: a file or folder of photos, opened once; its views say what it knows of them.

    labels()   present, absent and unknown       a LabelTable
    scores()   a number for each photo and label  RawScores
    tags()     who tagged what, to be audited     a TagTable
    votes()    answers by several people          Votes

Each view stops with a sentence that says what the file lacks for it; what was left out is in the
``notes`` of what it returns. All of them read text tables alike: see :mod:`text_files`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from labelwise.errors import DataError
from labelwise.tables.load import load
from labelwise.tables.score_files import RawScores, read_raw
from labelwise.tables.table import LabelTable
from labelwise.tables.tabular import TABULAR, open_tabular
from labelwise.tables.tags import TagTable, read_tags
from labelwise.tables.votes import HEADERS, Votes, vote_columns

Holds = Literal["labels", "scores", "votes"]


@dataclass(frozen=True)
class Table:
    """What a place says of photos; ``options`` are those of its format, as ``load`` takes them."""

    place: str | Path
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The names of the columns, none where the place is not one table."""
        file = Path(self.place)
        if not file.is_file() or file.suffix.lower() not in TABULAR or file.suffix == ".json":
            return ()
        return tuple(open_tabular(file).header)

    @cached_property
    def holds(self) -> Holds:
        """Which view its columns are made for."""
        names = {name.strip().lower().replace(" ", "_") for name in self.header}
        marked = any(name.startswith(("score:", "label:")) for name in self.header)
        predicted = {"path", "labels", "error"} <= names or names == {"path", "error"}
        predicted = predicted or "probs" in names or {"id", "logits"} <= names
        file = Path(self.place)
        if marked or predicted or (file.suffix.lower() == ".npz" and file.is_file()):
            return "scores"
        return "votes" if len(vote_columns(self.header)) == len(HEADERS) else "labels"

    def labels(self) -> LabelTable:
        return load(self.place, **self.options)

    def scores(self, keep: Sequence[str] = ()) -> RawScores:
        """Return the numbers of the file, and the columns ``keep`` as text."""
        return read_raw(Path(self.place), keep)

    def tags(
        self, *, trust: str | None = None, images: Path | None = None, at_least: float = 0.5
    ) -> TagTable:
        """Return the tags; ``trust`` names an annotator, ``images`` a COCO instances file."""
        return read_tags(Path(self.place), trust=trust, images=images, at_least=at_least)

    def votes(self) -> Votes:
        """Return the answers of several people."""
        return Votes.read(self.place)


def open_table(place: str | Path, **options: Any) -> Table:
    """Return a file or folder of photos, opened; ``options`` are those of :func:`load`.

    >>> open_table("labels.csv")
    Traceback (most recent call last):
    labelwise.errors.DataError: there is no file or folder labels.csv
    """
    text = str(place)  # "train=a.csv;test=b-*.csv" names several files, "coco:a.json" a format
    is_file = Path(text).suffix.lower() in TABULAR and set(text).isdisjoint("=:;*?[")
    if (is_file or isinstance(place, Path)) and not Path(text).exists():
        raise DataError(f"there is no file or folder {place}")
    return Table(place, options)
