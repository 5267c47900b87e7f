"""What to ask people about photos, and what they answered as a table to train on.

    uncertain  p (1 - p)                         the answer is hardest to guess
    missing    p of labels that were not given   a label may be missing
    wrong      1 - p of labels that were given   a label may be wrong
    value      missing and wrong together        the chance that an answer changes the label set

Questions are taken from the labels in turn. No photo is asked about twice in one round; what was
answered is not asked again.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.asking import Pool, asked_in_turn, changes_set
from labelwise.base.storage import is_uri
from labelwise.errors import DataError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.photos.filters import EVERYTHING, PhotoGroups
from labelwise.photos.index import Index
from labelwise.pictures import FileImages
from labelwise.tables import LabelTable

Reason = Literal["uncertain", "missing", "wrong", "value"]


@dataclass(frozen=True)
class Question:
    """Does a photo carry a label? With what the model says now, and the worth of an answer."""

    row: int
    label: str
    probability: float
    given: bool
    worth: float


def questions(
    index: Index, by: Reason, count: int, labels: Sequence[str] | None = None
) -> list[Question]:
    """Return the ``count`` questions most worth asking, about all labels or some of them."""
    columns = range(len(index.space)) if labels is None else map(index.space.column, labels)
    queues = {column: _queue(index, column, by, count) for column in columns}
    asked: set[int] = set()

    def best(column: int) -> tuple[int, float] | None:
        queue = queues[column]
        while queue and queue[0].row in asked:
            queue.pop(0)
        return (queue[0].row, queue[0].worth) if queue else None

    chosen: list[Question] = []
    for row, column in asked_in_turn(queues, best, count):
        asked.add(row)
        chosen.append(queues[column][0])
    return chosen


def pool_of(index: Index) -> tuple[Pool, LabelTable]:
    """Return the photos of an index to choose from, and as a table of what people said."""
    rows = index.store.alive_rows()
    if not len(rows):
        raise DataError(f"{index.folder} holds no photos to choose from")
    probs, sets = np.exp(index.log_probs(rows)), index.sets(rows)
    truth, closed = _answers(index, rows.tolist())
    pool = Pool.of(probs, sets, truth, index.store.embeddings()[rows], closed=closed)
    images = FileImages("/", [paths[0] for paths in index.store.paths_of(rows.tolist()).values()])
    facts = (index.space, images, truth == 1, ~np.isnan(truth))
    return pool, LabelTable.from_arrays(*facts, name=str(index.folder))


def _queue(index: Index, column: int, by: Reason, count: int) -> list[Question]:
    name, probs = index.space.names[column], np.exp(index.odds(column).log_p)
    given = index.given(column)
    value = changes_set(probs, given)
    worths = {"uncertain": probs * (1 - probs), "value": value}
    worths |= {"missing": np.where(given, 0, value), "wrong": np.where(given, value, 0)}
    worth = worths[by].astype(np.float32)
    worth[[correction.row for correction in index.store.corrections(name)]] = -1
    worth[index.store.dead_rows()] = -1
    keep = min(count, len(worth))
    rows = np.argpartition(-worth, keep - 1)[:keep] if keep else np.empty(0, np.int64)
    rows = rows[np.lexsort((rows, -worth[rows]))]
    return [
        Question(int(row), name, float(probs[row]), bool(given[row]), float(worth[row]))
        for row in rows
        if worth[row] > 0
    ]


def corrected_labels(index: Index, groups: PhotoGroups = EVERYTHING) -> tuple[LabelTable, int]:
    """Return what people said of photos, to train on, and how many photos are left out of it.

    Those are photos that the model is tested on, known by the end of their paths. Every row is of
    the split ``train``: people correct what they happened to see.
    """
    paths = index.store.paths_of({correction.row for correction in index.store.corrections()})
    tested = set[str]()
    if index.held_out is not None and index.facts.may_promise:
        tested |= set(map(str, index.held_out.ids))
    run = RunFolder(fetched_run(index.facts.model))
    if "test" in run.splits:
        tested |= set(map(str, run.predictions("test").ids))

    def is_tested(path: str) -> bool:
        parts = path.split(os.sep)
        return any(os.sep.join(parts[start:]) in tested for start in range(len(parts)))

    kept = sorted(row for row, own in paths.items() if own and not any(map(is_tested, own)))
    if not kept:
        none = f"{index.folder} has no correction to export, of a photo that is there and no test"
        raise DataError(f"{none} photo; say something with `labelwise label`")
    truth, _ = _answers(index, kept)
    members = groups.of(index, np.array(kept, np.int64)) if groups.by else {}
    group_of = {int(row): name for name, rows in members.items() for row in rows}
    files = [paths[row][0] for row in kept]
    local = [os.path.dirname(path) for path in files if not is_uri(path)]
    root = os.path.commonpath(local) if local else os.sep
    table = LabelTable.from_arrays(
        index.space,
        FileImages(root, [p if is_uri(p) else os.path.relpath(p, root) for p in files]),
        truth == 1,
        ~np.isnan(truth),
        split=["train"] * len(kept),
        group=[group_of[row] for row in kept] if groups.by else None,
        name=f"corrections of {index.folder}",
    )
    return table, sum(bool(path) for path in paths.values()) - len(kept)


def _answers(index: Index, rows: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return what people said of photos, (n, K): 1, 0, or NaN; and where they were asked."""
    position_of = {row: at for at, row in enumerate(rows)}
    truth = np.full((len(rows), len(index.space)), np.nan)
    asked = np.zeros(truth.shape, np.bool_)
    for correction in index.store.corrections():
        if correction.row in position_of and correction.state in ("present", "absent", "unknown"):
            entry = position_of[correction.row], index.space.column(correction.label)
            asked[entry] = True
            if correction.state != "unknown":
                truth[entry] = correction.state == "present"
    return truth, asked
