"""Suspects: given labels that are probably wrong, and labels that are probably missing.

    missing   the label is said to be absent:   worst first by   log p - log(1 - p)
    wrong     the label is said to be present:  worst first by   log(1 - p) - log p

p is the probability that the label is there, by rows other than this one
(:func:`crossfit_true_log_odds`). If labels are lost at random with chance r and none is given
wrongly, an absent one is there with the chance r p / (1 - p + r p): the order holds whatever r is,
but how many of the first suspects are true does not follow from the scores. That is found out by
looking (:func:`promise_suspects`).
Unknown entries are nobody's mistake and never suspects.

The promise is exact and assumes nothing of the model. The list is cut into stretches (first 50,
next 50, next 100, next 200, ...), and a random sample of each is marked ``check`` before anybody
looks. A stretch of S suspects with n checked, x of them false, is rejected as "more than
floor(level S) false" if

    P(Hypergeometric(S, floor(level S) + 1, n) <= x) <= 1 - confidence

Stretches are tested from the first on until one fails (a fixed sequence), so with ``confidence``
no stretch that passed holds more false suspects than the level: nor do they together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.arrays import Array, as_mask, check_shapes, to_numpy
from labelwise.numeric.special import expit

SuspectKind = Literal["missing", "wrong"]
FIRST_STRETCH = 50


@dataclass(frozen=True, eq=False)
class Suspects:
    """Entries (photo, label) that may be mistakes, the likeliest first.

    ``probs`` are the probabilities that the label is there, by rows other than this.
    """

    kind: SuspectKind
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    probs: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    def per_label(self, num_labels: int) -> NDArray[np.int64]:
        """Return how many suspects each label has, (K,)."""
        return np.bincount(self.columns, minlength=num_labels)

    def photos(self) -> list[tuple[int, list[int]]]:
        """Return each photo once, by its likeliest suspect, with the places of all its own."""
        places: dict[int, list[int]] = {}
        for place, row in enumerate(self.rows.tolist()):
            places.setdefault(row, []).append(place)
        return list(places.items())


@dataclass(frozen=True)
class SuspectPromise:
    """The first ``count`` suspects hold at most ``level`` false ones, with ``confidence``."""

    count: int
    level: float
    confidence: float
    checked: int
    false: int
    stretches: tuple[tuple[int, int, int], ...]  # size, checked, found false

    def __str__(self) -> str:
        if not self.count:
            size, checked, false = self.stretches[0] if self.stretches else (0, 0, 0)
            return (
                f"nothing can be promised: of {checked} checked among the first {size}, "
                f"{false} were false, too many for at most {self.level:.0%} "
                f"with {self.confidence:.0%} confidence"
            )
        return (
            f"promised with {self.confidence:.0%} confidence: at most {self.level:.0%} of the "
            f"first {self.count:,} suspects are false; {self.checked:,} of them were checked, "
            f"{self.false:,} were false"
        )


def find_suspects(
    log_odds: Array,
    labels: Array,
    observed: Array | None = None,
    *,
    kind: SuspectKind,
    most: int = 1000,
) -> Suspects:
    """Return the ``most`` likeliest suspects among the known entries of one kind.

    ``log_odds`` (N, K) must not have been fitted on the labels they judge
    (:func:`crossfit_true_log_odds`).
    """
    if kind not in ("missing", "wrong"):
        raise ValueError(f"kind must be 'missing' or 'wrong', got {kind!r}")
    odds, truth = to_numpy(log_odds), to_numpy(labels)
    known = None if observed is None else as_mask(to_numpy(observed), "observed")
    check_shapes(log_odds=odds, labels=truth, observed=known)
    asked = truth == (0 if kind == "missing" else 1)
    if known is not None:
        asked &= known
    places = np.flatnonzero(asked)
    doubt = odds.reshape(-1)[places]
    if np.isnan(doubt).any():
        raise ValueError("log_odds must not be NaN where a label is known, got NaN")
    if kind == "missing":
        doubt = -doubt
    keep = min(most, len(places))
    if 0 < keep < len(places):
        first = doubt <= np.partition(doubt, keep - 1)[keep - 1]  # and those tied with the last
        places, doubt = places[first], doubt[first]
    places = places[np.lexsort((places, doubt))][:keep]
    rows, columns = np.divmod(places, odds.shape[1])
    return Suspects(kind, rows, columns, expit(odds[rows, columns].astype(np.float64)))


def stretches(count: int) -> list[slice]:
    """Return the stretches of a list: the first 50, then as many as came before.

    >>> stretches(230)[2]
    slice(100, 200, None)
    """
    parts, start = [], 0
    while start < count:
        stop = min(max(FIRST_STRETCH, 2 * start), count)
        parts.append(slice(start, stop))
        start = stop
    return parts


def marked_checks(count: int, *, per_stretch: int = 50, seed: int = 0) -> NDArray[np.bool_]:
    """Return which of ``count`` suspects a person should look at, drawn in each stretch."""
    rng = np.random.default_rng(seed)
    marked = np.zeros(count, dtype=bool)
    for part in stretches(count):
        size = part.stop - part.start
        marked[part.start + rng.choice(size, min(per_stretch, size), replace=False)] = True
    return marked


def promise_suspects(
    marked: NDArray[np.bool_] | Sequence[bool],
    confirmed: Mapping[int, bool],
    *,
    level: float,
    confidence: float = 0.95,
) -> SuspectPromise:
    """Return how much of a list holds at most ``level`` false suspects.

    ``confirmed`` gives, by place in the list, whether a marked suspect really is a mistake; what
    a person cannot tell counts as false. A stretch with marked suspects nobody answered ends the
    list.
    """
    from scipy.stats import hypergeom  # slow to import, and seldom needed

    if not 0 < level < 1 or not 0 < confidence < 1:
        raise ValueError(f"level and confidence must lie in (0, 1), got {level} and {confidence}")
    chosen = np.flatnonzero(np.asarray(marked))
    count = checked = false = 0
    looked: list[tuple[int, int, int]] = []
    for part in stretches(len(marked)):
        own = [place for place in chosen.tolist() if part.start <= place < part.stop]
        if not own or any(place not in confirmed for place in own):
            break
        size, seen = part.stop - part.start, sum(not confirmed[place] for place in own)
        looked.append((size, len(own), seen))
        too_many = floor(level * size + 1e-9) + 1
        if float(hypergeom.cdf(seen, size, min(too_many, size), len(own))) > 1 - confidence:
            break
        count, checked, false = part.stop, checked + len(own), false + seen
    return SuspectPromise(count, level, confidence, checked, false, tuple(looked))
