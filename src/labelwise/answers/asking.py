"""What to label next: the photos, or the single labels of photos, whose answers are worth most.

The model gives label k of a photo the calibrated probability p_k and chooses the set G; Y is the
truth. An answer to "does the photo carry k?" puts k into G or takes it out. It is worth

    value       P(the answer changes G) = p_k where k is not in G, 1 - p_k where it is
    entropy     -p_k log p_k - (1 - p_k) log(1 - p_k), what the answer tells
    diverse     1: only that it looks unlike the others counts

Whole photos can also be drawn at random, to be like the rest of the photos. Copies of photos that
were drawn or labelled before (a cosine of 1 but for rounding) come last.

Rare labels would lose against the common ones, so labels take turns, those with more to gain first:
each asks about its best photo. Where whole photos are labelled it takes the photo for all of them
(``diverse``: all labels are one), which the next label passes over.

Photos that look alike teach the same. So the best photo of a label is that of

    the largest   worth_i (1 - max(0, largest cosine of i and the photos chosen or labelled before))

on the embeddings of the backbone; without them on (sqrt p, sqrt(1 - p)), whose cosine says how much
the answers of two photos overlap.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, as_mask, check_shapes, to_numpy
from labelwise.base.special import entr

Criterion = Literal["value", "entropy", "diverse"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
Numbers = NDArray[np.float64]
Vectors = NDArray[np.float32]
CANDIDATES, MORE_CANDIDATES = 4, 500  # per label: times what it will ask, and added to that
CELLS = 1 << 22  # numbers at once
COPY = 1 - 1e-6  # cosine of photos that are the same


def changes_set(probs: Numbers, given: NDArray[np.bool_]) -> Numbers:
    """Return the chance that an answer changes the label set: 1 - p if it is given, else p."""
    return np.where(given, 1 - probs, probs)


@dataclass(frozen=True, eq=False)
class Pool:
    """Photos to choose from: probabilities (N, K), the model's sets, open entries, unit vectors."""

    probs: Numbers
    sets: NDArray[np.bool_]
    open: NDArray[np.bool_]
    vectors: Vectors

    @classmethod
    def of(
        cls,
        probs: Array,
        sets: Array,
        truth: Array | None = None,
        vectors: Array | None = None,
        *,
        closed: Array | None = None,
    ) -> "Pool":
        """Return the pool; what people know is certain, and stands in the sets.

        ``truth`` (N, K) is 1 or 0 where it is known and NaN elsewhere; ``closed`` marks entries
        that are not to be asked whatever is known of them.
        """
        p = to_numpy(probs).astype(np.float64)
        given = as_mask(to_numpy(sets), "sets").astype(bool)
        known = np.full(p.shape, np.nan) if truth is None else to_numpy(truth).astype(np.float64)
        check_shapes(probs=p, sets=given, truth=known)
        if not ((p >= 0) & (p <= 1)).all():
            raise ValueError("probabilities must lie in [0, 1]")
        unknown = np.isnan(known)
        p, given = np.where(unknown, p, known), np.where(unknown, given, known == 1)
        if closed is not None:
            unknown &= ~as_mask(to_numpy(closed), "closed").astype(bool)
        if vectors is None:
            vectors = np.concatenate([np.sqrt(p), np.sqrt(1 - p)], axis=1)
        places = to_numpy(vectors).astype(np.float32)
        if len(places) != len(p):
            raise ValueError(f"vectors must have {len(p)} rows, got {len(places)}")
        lengths = np.maximum(np.linalg.norm(places, axis=1, keepdims=True), 1e-12)
        return cls(p, given, unknown, np.asarray(places / lengths, np.float32))

    def __len__(self) -> int:
        return len(self.probs)


def choose_photos(pool: Pool, count: int, by: Criterion) -> NDArray[np.intp]:
    """Return the rows of the ``count`` photos to label next, best first."""
    unanswered = pool.open
    whole = np.asarray(~unanswered.any(1))
    worth: Numbers = np.where(unanswered, worth_of_labels(pool, by), 0.0)
    if by == "diverse":
        worth = (~whole[:, None]).astype(np.float64)
    seen = _Seen(pool.vectors, np.arange(len(pool)), whole)
    chosen = []
    for row, _ in asked_in_turn(range(worth.shape[1]), lambda k: seen.best(worth[:, k]), count):
        worth[row] = 0.0
        seen.add(row)
        chosen.append(row)
    return np.array(chosen, np.intp)


def draw_photos(pool: Pool, count: int, *, seed: int = 0) -> NDArray[np.intp]:
    """Return the rows of ``count`` photos drawn at random to be labelled next, copies last."""
    rows = np.flatnonzero(pool.open.any(1))
    seen = _Seen(pool.vectors, rows, np.asarray(~pool.open.any(1)))
    chosen: list[int] = []
    copies: list[int] = []
    for number in np.random.default_rng(seed).permutation(len(rows)).tolist():
        if len(chosen) == count:
            break
        if seen.nearest[number] > COPY:
            copies.append(number)
            continue
        chosen.append(number)
        seen.add(number)
    return np.asarray(rows[[*chosen, *copies][:count]], np.intp)


def choose_labels(
    pool: Pool, count: int, by: Criterion
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows and columns of the ``count`` single questions to ask next, best first."""
    unanswered, worth = pool.open, worth_of_labels(pool, by)
    labels = pool.probs.shape[1]
    keep = CANDIDATES * -(-count // max(labels, 1)) + MORE_CANDIDATES
    queues = []
    for column in range(labels):
        own = np.where(unanswered[:, column], worth[:, column], 0.0)
        rows = np.arange(len(own))
        if keep < len(own):
            rows = np.sort(np.argpartition(-own, keep - 1)[:keep])
        queues.append((_Seen(pool.vectors, rows, ~unanswered[:, column]), own[rows]))
    chosen = []
    for row, column in asked_in_turn(range(labels), lambda k: _Seen.best(*queues[k]), count):
        seen, own = queues[column]
        own[row] = 0.0
        seen.add(row)
        chosen.append((seen.rows[row], column))
    rows, columns = np.array(chosen, np.intp).reshape(-1, 2).T
    return rows, columns


def asked_in_turn(
    columns: Iterable[int], best: Callable[[int], tuple[int, float] | None], count: int
) -> Iterator[tuple[int, int]]:
    """Yield (row, column) of ``count`` questions, one of each label in each round.

    ``best`` gives the row a label would ask about now and what that is worth, or None. In a round
    the labels with more to gain come first.
    """
    labels, done = list(columns), 0
    while labels and done < count:
        heads = [(best(column), column) for column in labels]
        worth = [(candidate[1], column) for candidate, column in heads if candidate is not None]
        labels = [column for _, column in sorted(worth, reverse=True)]
        for column in labels:
            candidate = best(column)
            if candidate is not None and done < count:
                done += 1
                yield candidate[0], column


class _Seen:
    """Candidates, and how much each looks like a photo that was chosen or labelled before."""

    def __init__(
        self, vectors: Vectors, rows: NDArray[np.intp], labelled: NDArray[np.bool_]
    ) -> None:
        self.rows, self.vectors = rows, vectors[rows]
        self.nearest = np.zeros(len(rows), np.float32)
        before = vectors[labelled]
        step = max(1, CELLS // max(len(before), 1))
        for start in range(0, len(rows), step) if len(before) else ():
            block = slice(start, start + step)
            self.nearest[block] = np.maximum((self.vectors[block] @ before.T).max(1), 0)

    def best(self, worth: Numbers) -> tuple[int, float] | None:
        """Return the row of the candidate that is worth most, and that worth; copies come last.

        ``worth`` (n,) is that of each candidate; None if all are worth nothing.
        """
        if not len(worth):
            return None
        new = worth * (1 - self.nearest)
        row = int(np.argmax(new))
        if new[row] <= 0:
            row = int(np.argmax(worth))
        return (row, float(worth[row])) if worth[row] > 0 else None

    def add(self, place: int) -> None:
        self.nearest = np.maximum(self.nearest, self.vectors @ self.vectors[place])


def worth_of_labels(pool: Pool, by: Criterion) -> Numbers:
    """Return what the answer to each label of each photo is worth, (N, K)."""
    if by not in CRITERIA:
        raise ValueError(f"by must be one of {', '.join(CRITERIA)}, got {by!r}")
    if by == "value":
        return np.asarray(changes_set(pool.probs, pool.sets), np.float64)
    if by == "entropy":
        return np.asarray(entr(pool.probs) + entr(1 - pool.probs), np.float64)
    return np.ones(pool.probs.shape)
