"""What is worth a person's minute: questions about one label of one photo, the best first.

    uncertain  p (1 - p)                         the answer is hardest to guess
    missing    p of labels that were not given   a label may be missing
    wrong      1 - p of labels that were given   a label may be wrong
    value      missing and wrong together        the chance that an answer changes the label set

Rare labels have few photos near their thresholds and common ones have many, so the questions are
taken from the labels in turn, and no photo is asked about twice in one round. What was answered
already, or said to be unknowable, is not asked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.search.index import Index

__all__ = ["REASONS", "Question", "Reason", "questions"]

Reason = Literal["uncertain", "missing", "wrong", "value"]
REASONS: tuple[Reason, ...] = ("uncertain", "missing", "wrong", "value")
ROWS_AT_ONCE = 1 << 14


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
    chosen: list[Question] = []
    asked: set[int] = set()
    while len(chosen) < count and any(queues.values()):
        heads = sorted((queue[0].worth, column) for column, queue in queues.items() if queue)
        for _, column in reversed(heads):
            queue = queues[column]
            while queue and queue[0].row in asked:
                queue.pop(0)
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
                asked.add(chosen[-1].row)
    return chosen


def _queue(index: Index, column: int, by: Reason, count: int) -> list[Question]:
    """Return the best questions about one label, more than can be needed of it."""
    name = index.space.names[column]
    probs = np.exp(index.odds(column).log_p.values)
    given = index.given(column)
    worth = _worth(probs, given, by)
    closed = [one.row for one in index.store.corrections(name)]
    worth[closed] = -1
    worth[index.store.dead_rows()] = -1
    keep = min(count, len(worth))
    rows = np.argpartition(-worth, keep - 1)[:keep] if keep else np.empty(0, np.int64)
    rows = rows[np.lexsort((rows, -worth[rows]))]
    return [
        Question(int(row), name, float(probs[row]), bool(given[row]), float(worth[row]))
        for row in rows
        if worth[row] > 0
    ]


def _worth(probs: NDArray[np.float32], given: NDArray[np.bool_], by: Reason) -> NDArray[np.float32]:
    missing, wrong = np.where(given, 0, probs), np.where(given, 1 - probs, 0)
    worths = {
        "uncertain": probs * (1 - probs),
        "missing": missing,
        "wrong": wrong,
        "value": missing + wrong,
    }
    return worths[by].astype(np.float32)
