"""Votes: what several people answered to "does this photo carry this label?", as soft labels.

A file of votes (CSV, TSV, JSON Lines or Parquet) has one answer per row: photo, label, worker, and
yes, no or don't know. "Don't know" says nothing of the photo; it is only counted. A label of a
photo that nobody answered with yes or no is unknown.

``counts`` takes the share of yes. ``workers`` is the model of Dawid and Skene (1979), for each
label by itself. The truth t of a photo is 1 with chance pi; a worker w says yes with chance a_w
(sensitivity) if t = 1, and no with chance b_w (specificity) if t = 0, independently of the others:

    log odds of t = logit pi + sum over votes   log a_w / (1 - b_w)      of yes
                                                log (1 - a_w) / b_w      of no

The parameters are the most probable ones under these priors, which stand for answers seen before:

    a_w, b_w ~ Beta(1 + s q, 1 + s (1 - q))     s answers, a share q of them right
    pi       ~ Beta(1 + m, 1 + m)               m photos with the label and m without

EM alternates T = P(t = 1 | votes), the line above, and closed forms, sums over the votes of w:

    a_w = (sum T yes + s q) / (sum T + s)         pi = (sum T + m) / (photos + 2 m)
    b_w = (sum (1 - T) no + s q) / (sum (1 - T) + s)

which never lowers the posterior density. The soft label is T: how probable the label is, not the
share of people who would say yes. Where people differ because the photo is unclear, and not
because some of them err, the counts are the better target.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelwise.base.names import Names
from labelwise.errors import DataError, SettingsError
from labelwise.pictures.sources import FileImages, ImageSource
from labelwise.tables.rows import require_file
from labelwise.tables.table import LabelSets, LabelTable, SoftLabels
from labelwise.tables.tabular import open_tabular
from labelwise.tables.words import ABSENT, NO_STATE, PRESENT, USUAL_PATHS, folded
from labelwise.types import LabelSpace, nearest

# Usual names of the four columns; the first name that is there counts.
PHOTO = ("photo", "path", "image", "file", "filename")
HEADERS = {
    "photo": (*PHOTO, *sorted(USUAL_PATHS - {*PHOTO, "id"}), "id", "task", "item"),
    "label": ("label", "tag", "class", "question", "frage", "etikett", "étiquette", "etiqueta"),
    "worker": (
        *("worker", "annotator", "rater", "user", "workerid", "annotatorid", "person", "personne"),
        *("persona", "bearbeiter", "annotateur", "anotador"),
    ),
    "answer": (
        *("answer", "vote", "value", "response", "antwort", "réponse", "respuesta", "risposta"),
        "resposta",
    ),
}
YES, NO, DONT_KNOW = 1, 0, -1
ANSWERS = {
    **dict.fromkeys((*NO_STATE, "don’t know", "-1", "-1.0", "skip"), DONT_KNOW),
    **dict.fromkeys((*ABSENT, "0.0"), NO),
    **dict.fromkeys((*PRESENT, "1.0"), YES),
}
ALL_LABELS = "*"
RIGHT, ANSWERS_BEFORE = 0.8, 4.0  # of the prior: q and s
CLOSE, MOST_STEPS = 1e-6, 1000

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Votes:
    """Every vote (V,) as numbers: of its photo, its label and its worker, and the answer."""

    photos: Names
    labels: tuple[str, ...]
    workers: tuple[str, ...]
    photo: Ints
    label: Ints
    worker: Ints
    answer: NDArray[np.int8]

    @classmethod
    def read(cls, path: str | Path) -> "Votes":
        file = require_file(Path(path))
        stream = open_tabular(file)
        columns_of = vote_columns(stream.header)
        for meaning, names in HEADERS.items():
            if meaning not in columns_of:
                others, got = ", ".join(names[1:6]), ", ".join(map(repr, stream.header))
                rule = f"there must be a column {meaning!r} (or {others}, ...)"
                raise DataError(f"{file.name}: {rule}, got {got}")
        headers = [columns_of[meaning] for meaning in HEADERS]
        unit = "line" if stream.text_only else "row"
        has_header = stream.text_only and file.suffix.lower() not in (".jsonl", ".ndjson")
        columns: list[list[pa.Array]] = [[] for _ in headers]
        for batch in stream.batches(headers):
            for column, values in zip(columns, batch.columns, strict=True):
                text = pc.fill_null(values.cast(pa.large_string()), "")
                column.append(pc.utf8_trim_whitespace(text))
        texts = [pa.chunked_array(parts, pa.large_string()).combine_chunks() for parts in columns]
        if not len(texts[0]):
            raise DataError(f"{file.name}: there are no votes in it")

        def at(row: int) -> str:
            return f"{file.name}, {unit} {row + 1 + has_header}"

        for header, text in zip(headers, texts, strict=True):
            if (row := pc.index(text, "").as_py()) >= 0:
                way_out = "fill it in, or remove the row"
                raise DataError(f"{at(row)}: the column {header!r} is empty; {way_out}")
        return cls._of_texts(texts, at)

    @classmethod
    def of(cls, rows: Sequence[tuple[str, str, str, str]]) -> "Votes":
        texts = [
            pa.array(map(str, column), pa.large_string()) for column in zip(*rows, strict=True)
        ]
        return cls._of_texts(texts, lambda row: f"votes, row {row + 1}")

    @classmethod
    def _of_texts(cls, texts: Sequence[pa.Array], at: Callable[[int], str]) -> "Votes":
        (photos, photo), (labels, label), (workers, worker) = map(_coded, texts[:3])
        space = LabelSpace(tuple(sorted(labels)))
        column = np.array([space.column(name) for name in labels], np.int64)
        words, code = _coded(pc.utf8_lower(texts[3]))
        answer = np.array([ANSWERS.get(word, 2) for word in words], np.int8)[code]
        for row in np.flatnonzero(answer == 2)[:1].tolist():
            got = texts[3][row].as_py()
            raise DataError(f"{at(row)}: an answer is yes, no or don't know, got {got!r}")
        votes = cls(
            Names(photos), space.names, tuple(workers), photo, column[label], worker, answer
        )
        key = np.unique(votes.entry, return_inverse=True)[1] * len(workers) + worker
        order = np.argsort(key, kind="stable")
        again = np.flatnonzero(np.diff(key[order]) == 0)
        if len(again):
            row, earlier = min(zip(order[again + 1].tolist(), order[again].tolist(), strict=True))
            raise DataError(
                f"{at(row)}: {workers[worker[row]]!r} has answered "
                f"{space.names[votes.label[row]]!r} of {photos[photo[row]]!r} before, in "
                f"{at(earlier).rpartition(', ')[2]}; keep one of the two"
            )
        return votes

    def __len__(self) -> int:
        return len(self.answer)

    @property
    def entry(self) -> Ints:
        """The number of each vote's entry, photo * labels + label, (V,)."""
        return self.photo * len(self.labels) + self.label

    def answered(self) -> "Votes":
        kept = self.answer != DONT_KNOW
        votes = (self.photo[kept], self.label[kept], self.worker[kept], self.answer[kept])
        return Votes(self.photos, self.labels, self.workers, *votes)


@dataclass(frozen=True)
class WorkerRecord:
    """How one worker answered one label, or all of them (``*``).

    ``present`` and ``absent`` are expected numbers of photos with and without the label among those
    that were answered.
    """

    worker: str
    label: str
    yes: int
    no: int
    dont_know: int
    present: float
    absent: float
    sensitivity: float | None
    specificity: float | None


@dataclass(frozen=True, eq=False)
class SoftVotes:
    """The share of each entry that is known, and how each worker did.

    ``entries`` (E,) are numbered as ``Votes.entry``, ascending: there may be far fewer of them than
    photos times labels.
    """

    votes: Votes
    entries: Ints
    known: Floats
    records: tuple[WorkerRecord, ...]
    how: str

    @property
    def shares(self) -> Floats:
        """The shares as a matrix (photos, labels), NaN where unknown; large where both are many."""
        shares = np.full((len(self.votes.photos), len(self.votes.labels)), np.nan)
        shares.ravel()[self.entries] = self.known
        return shares

    def table(self, images: ImageSource | Path, name: str = "votes") -> LabelTable:
        """Return the photos with their soft labels; a path is the folder they lie in.

        Of given images those without a vote are unlabelled; each photo voted on must be there.
        """
        if isinstance(images, Path):
            images = FileImages(images, self.votes.photos)
        row_of = {photo: row for row, photo in enumerate(images.ids)}
        for photo in self.votes.photos:
            if photo not in row_of:
                there = nearest(photo, row_of)
                raise DataError(f"{name} has no photo {photo!r}, which has votes{there}")
        photo_number, column = np.divmod(self.entries, len(self.votes.labels))
        row = np.array([row_of[photo] for photo in self.votes.photos], np.int64)[photo_number]
        order = np.lexsort((column, row))
        row, column, share = row[order], column[order], self.known[order].astype(np.float32)
        soft = (share > 0) & (share < 1)
        present, known, shared = (
            LabelSets.from_entries(row[chosen], column[chosen], len(images), len(self.votes.labels))
            for chosen in (share > 0.5, share >= 0, soft)
        )
        space, shares = LabelSpace(self.votes.labels), SoftLabels(shared, share[soft])
        return LabelTable(space, images, present, known.complement(), name=name, soft=shares)


def count_votes(votes: Votes, *, smoothing: float = 0.0, least: int = 1) -> SoftVotes:
    """Return the share of yes among yes and no, ``(yes + smoothing) / (yes + no + 2 smoothing)``.

    An entry with fewer than ``least`` answers is unknown. A worker's rates are measured against
    the others' shares; photos that nobody else answered are left out.
    """
    if smoothing < 0:
        raise SettingsError(f"smoothing must not be negative, got {smoothing}")
    kept = votes.answered()
    affirmed = kept.answer == YES
    entries, entry = np.unique(kept.entry, return_inverse=True)
    yes, answers = np.bincount(entry, affirmed, len(entries)), np.bincount(entry)
    shares = (yes + smoothing) / (answers + 2 * smoothing)
    others = answers[entry] - 1
    counted = others > 0
    truth = np.where(counted, (yes[entry] - affirmed) / np.maximum(others, 1), 0.0)
    records = _records(votes, kept, truth, counted.astype(float), None)
    smooth = f", smoothed by {smoothing:g}" if smoothing else ""
    enough = answers >= least
    return SoftVotes(votes, entries[enough], shares[enough], records, f"shares of yes{smooth}")


def model_workers(
    votes: Votes,
    *,
    right: float = RIGHT,
    strength: float = ANSWERS_BEFORE,
    photos: float = 1.0,
    least: int = 1,
) -> SoftVotes:
    """Return the probability of each label by the model of workers described above.

    ``right`` is q, ``strength`` is s and ``photos`` is m of the prior. An entry with fewer than
    ``least`` answers is unknown.
    """
    if not 0.5 < right < 1:
        raise SettingsError(f"right must lie between 0.5 and 1, got {right}")
    if strength < 0 or photos < 0:
        raise SettingsError(f"a prior must not be negative, got {strength=:g}, {photos=:g}")
    kept = votes.answered()
    affirmed, width = kept.answer == YES, len(votes.labels)
    entries, entry = np.unique(kept.entry, return_inverse=True)
    label = entries % width
    pairs, pair = np.unique(kept.worker * width + kept.label, return_inverse=True)
    seen = np.bincount(label, minlength=width)
    yes, answers = np.bincount(entry, affirmed, len(entries)), np.bincount(entry)
    truth = (yes + 0.5) / (answers + 1)  # EM begins at the smoothed share of yes
    for steps in range(1, MOST_STEPS + 1):  # noqa: B007 (told below)
        share = (np.bincount(label, truth, width) + photos) / np.maximum(seen + 2 * photos, 1)
        there = truth[entry]
        rates = [
            (np.bincount(pair, weight * right_answer, len(pairs)) + strength * right)
            / np.maximum(np.bincount(pair, weight, len(pairs)) + strength, 1e-300)
            for weight, right_answer in ((there, affirmed), (1 - there, ~affirmed))
        ]
        with np.errstate(divide="ignore"):
            of_yes = np.log(rates[0]) - np.log1p(-rates[1])
            of_no = np.log1p(-rates[0]) - np.log(rates[1])
        weights = np.where(affirmed, of_yes[pair], of_no[pair]).clip(-700, 700)
        chance = share[label]
        odds = np.log(chance) - np.log1p(-chance) + np.bincount(entry, weights, len(entries))
        # The same as 1 / (1 + exp(-odds)), without overflow.
        before, truth = truth, 0.5 * (1 + np.tanh(odds / 2))
        if np.abs(truth - before).max(initial=0.0) < CLOSE:
            break
    enough = answers >= least
    records = _records(votes, kept, truth[entry], np.ones(len(kept)), (right, strength))
    ended = f"{steps} steps" if steps < MOST_STEPS else f"not settled after {steps} steps"
    how = (
        f"Dawid–Skene model of {len(votes.workers):,} workers per label, prior of {strength:g} "
        f"answers with {right:.0%} right, {ended}"
    )
    return SoftVotes(votes, entries[enough], truth[enough], records, how)


def _records(
    votes: Votes, kept: Votes, truth: Floats, weight: Floats, prior: tuple[float, float] | None
) -> tuple[WorkerRecord, ...]:
    width = len(votes.labels)
    affirmed, unsure = kept.answer == YES, votes.answer == DONT_KNOW
    cells, cell = np.unique(votes.worker * width + votes.label, return_inverse=True)

    there, lacking = weight * truth, weight * (1 - truth)
    known = (affirmed, ~affirmed, there, lacking, there * affirmed, lacking * ~affirmed)
    sums = [np.bincount(cell[~unsure], values, len(cells)) for values in known]
    sums.insert(2, np.bincount(cell[unsure], minlength=len(cells)))
    table = np.stack(sums, axis=-1)

    def rate(right: float, among: float) -> float | None:
        q, s = prior or (0.0, 0.0)
        return (right + s * q) / (among + s) if among + s > 0 else None

    records = []
    ends = np.searchsorted(cells, np.arange(len(votes.workers) + 1) * width).tolist()
    for name, (start, end) in zip(votes.workers, itertools.pairwise(ends), strict=True):
        labels = (votes.labels[label] for label in (cells[start:end] % width).tolist())
        rows = [table[start:end].sum(0), *table[start:end]]
        for label, row in zip((ALL_LABELS, *labels), rows, strict=True):
            yes, no, unknown, present, absent, hits, passes = row.tolist()
            counts = int(yes), int(no), int(unknown)
            rates = rate(hits, present), rate(passes, absent)
            records.append(WorkerRecord(name, label, *counts, present, absent, *rates))
    return tuple(records)


def vote_columns(header: Sequence[str]) -> dict[str, str]:
    """Return the columns by what they mean to votes, as far as there are some."""
    by_name = {folded(name): name for name in reversed(header)}
    named = {
        meaning: next((by_name[name] for name in names if name in by_name), None)
        for meaning, names in HEADERS.items()
    }
    return {meaning: name for meaning, name in named.items() if name is not None}


def _coded(column: pa.Array) -> tuple[list[str], Ints]:
    """Return the distinct texts in order of first use, and the number of each row's."""
    coded = pc.dictionary_encode(column)
    return coded.dictionary.to_pylist(), np.asarray(coded.indices, np.int64)
