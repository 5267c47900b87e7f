"""How many photos of an index match a query, from the answers about photos drawn at random.

The program draws before anyone looks, and notes what it drew in ``samples.jsonl`` of the index: the
query, the time, the seed, and the photos by the hashes of their contents. Nothing in that file is
changed afterwards; asking again for the same query, grouping and number gives the same photos. The
answers are appended to it. Photos that came after the draw are not part of the estimate; those that
are gone leave both the library and the sample, which stays a random one of what is left.
"""

import csv
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Answered, CountEstimate, estimate_count, estimate_total
from labelwise.errors import DataError
from labelwise.models.run_folder import Journal
from labelwise.retrieval import Query, bind
from labelwise.search.index import Index
from labelwise.system.files import replacing

__all__ = [
    "LibraryEstimate",
    "PhotoSample",
    "draw_sample",
    "estimate_from_answers",
    "read_answers",
    "write_questions",
]

SAMPLES_FILE = "samples.jsonl"
COLUMNS = ("path", "question", "answer")
WORDS = {"yes": 1.0, "1": 1.0, "no": 0.0, "0": 0.0, "unsure": np.nan}

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class PhotoSample:
    """Photos drawn at random for a query: hashes by group, of the first ``rows`` rows."""

    query: str
    by_folder: bool
    answers: int
    rows: int
    seed: int
    at: str
    drawn: Mapping[str, tuple[str, ...]]

    @property
    def photos(self) -> list[str]:
        """The hashes of all photos that were drawn, in the order of their draw."""
        return [photo for group in self.drawn.values() for photo in group]


@dataclass(frozen=True)
class LibraryEstimate:
    """The estimate of the whole library, of each group, and how many photos came after the draw."""

    total: CountEstimate
    groups: tuple[CountEstimate, ...]
    newer: int


def draw_sample(
    index: Index, query: Query, answers: int, *, by_folder: bool = False, seed: int | None = None
) -> PhotoSample:
    """Return ``answers`` photos drawn at random, in each folder if asked.

    If so many were drawn before for the same, it is those. Without a ``seed`` nobody knows the draw
    before it is made.
    """
    if answers < 1:
        raise DataError(f"at least one photo must be answered, got {answers}")
    known = _samples(index, query, by_folder)
    for sample in known:
        if sample.answers == answers:
            return sample
    seed = secrets.randbits(63) if seed is None else seed
    random = np.random.default_rng(seed)
    drawn = {}
    for group, rows in _groups(index, len(index), by_folder).items():
        chosen = random.permutation(rows)[:answers].tolist()
        contents = index.store.contents_of(chosen)
        drawn[group] = tuple(contents[row].hash.hex() for row in chosen)
    if not drawn:
        raise DataError(f"{index.folder} holds no photos to draw from")
    at = datetime.now(UTC).isoformat(timespec="seconds")
    sample = PhotoSample(str(query), by_folder, answers, len(index), seed, at, drawn)
    _journal(index).write({"kind": "sample", **vars(sample)})
    return sample


def write_questions(index: Index, sample: PhotoSample, path: Path) -> None:
    """Write the table to answer: path, question, and an empty answer for each photo."""
    rows = index.store.rows_by_hash(map(bytes.fromhex, sample.photos))
    paths = index.store.paths_of(rows.values())
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for row in rows.values():
            if paths[row]:
                table.writerow((paths[row][0], f"does it match {sample.query}?", ""))


def read_answers(path: Path) -> dict[str, float]:
    """Return the answers of a table by path: 1 for yes, 0 for no, NaN for unsure."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            if not {"path", "answer"} <= set(table.fieldnames or ()):
                got = ", ".join(table.fieldnames or ()) or "nothing"
                raise DataError(f"{path} must have the columns path and answer, got {got}")
            found: dict[str, float] = {}
            for number, line in enumerate(table, start=2):
                word = (line["answer"] or "").strip().lower()
                if word not in WORDS:
                    raise DataError(
                        f"{path}, line {number}: an answer must be yes, no or unsure, got {word!r}"
                    )
                if line["path"] in found:
                    raise DataError(f"{path}, line {number}: {line['path']} has two answers")
                found[line["path"]] = WORDS[word]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return found


def estimate_from_answers(
    index: Index, query: Query, answers: Mapping[str, float], *, by_folder: bool = False
) -> LibraryEstimate:
    """Return how many photos match a query, given answers by path for all photos of a sample."""
    told = {index.row_of(path): value for path, value in answers.items()}
    for sample in _samples(index, query, by_folder):
        rows = index.store.rows_by_hash(map(bytes.fromhex, sample.photos))
        alive = set(rows.values()) - set(index.store.dead_rows().tolist())
        if set(told) == alive:
            break
        if set(told) & alive and not set(told) <= alive:
            raise DataError(
                f"{len(set(told) - alive)} answers are of photos that were not drawn for {query}; "
                "only photos that the program drew can be counted on"
            )
        if set(told) < alive and told:
            raise DataError(
                f"{len(alive - set(told))} of the {len(alive)} photos drawn for {query} have no "
                "answer; answer each of them, if need be with unsure"
            )
    else:
        raise DataError(
            f"these photos were not drawn for {query}; draw some with `labelwise estimate` and "
            "--answers, and answer those"
        )
    _journal(index).write(
        {
            "kind": "answers",
            "query": sample.query,
            "seed": sample.seed,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "answers": {
                photo: None if np.isnan(told[row]) else told[row]
                for photo in sample.photos
                if (row := rows.get(bytes.fromhex(photo))) in told and row is not None
            },
        }
    )
    probs = _probs(index, query)
    parts = []
    for group, members in _groups(index, sample.rows, by_folder).items():
        drawn = np.intersect1d(members, list(told))
        places = np.searchsorted(members, drawn)
        values = np.array([told[row] for row in drawn.tolist()])
        parts.append(Answered.read(probs[members], places, values, group))
    return LibraryEstimate(
        estimate_total(parts),
        tuple(map(estimate_count, parts)) if by_folder else (),
        len(_alive(index, len(index))) - len(_alive(index, sample.rows)),
    )


def _probs(index: Index, query: Query) -> Numbers:
    """Return the probability of a query for all rows, without what sums of corrections refit."""
    bound = bind(query, index.space, index.query_taxonomy)
    odds = [index.odds(column, refit=False) for column in bound.columns]
    log_p = np.stack([one.log_p.values for one in odds], axis=1).astype(np.float64)
    log_q = np.stack([one.log_q.values for one in odds], axis=1).astype(np.float64)
    return np.clip(np.exp(bound.log_scores(log_p, log_q)), 0.0, 1.0)


def _alive(index: Index, rows: int) -> NDArray[np.int64]:
    return np.setdiff1d(np.arange(rows), index.store.dead_rows())


def _groups(index: Index, rows: int, by_folder: bool) -> dict[str, NDArray[np.int64]]:
    """Return the rows that are there, of the first ``rows``, by the folder of their first file."""
    alive = _alive(index, rows)
    if not by_folder:
        return {"": alive} if len(alive) else {}
    members: dict[str, list[int]] = {}
    for row, paths in index.store.paths_of(alive.tolist()).items():
        members.setdefault(os.path.dirname(paths[0]), []).append(row)
    return {group: np.array(sorted(members[group]), np.int64) for group in sorted(members)}


def _journal(index: Index) -> Journal:
    return Journal(index.folder / SAMPLES_FILE)


def _samples(index: Index, query: Query, by_folder: bool) -> Sequence[PhotoSample]:
    """Return what was drawn for a query and grouping, the latest first."""
    found = []
    for record in _journal(index).read():
        if record.pop("kind", None) == "sample":
            groups = {group: tuple(photos) for group, photos in record.pop("drawn").items()}
            found.append(PhotoSample(**record, drawn=groups))
    wanted = [one for one in found if (one.query, one.by_folder) == (str(query), by_folder)]
    return wanted[::-1]
