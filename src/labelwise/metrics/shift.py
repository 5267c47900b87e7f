"""Are photos like those that a model was tested on? Do probabilities still mean what they say?

**Likeness.** On points x (held-out) and z (new), scaled to the spread of both together, the energy
distance (Székely and Rizzo 2004)

    2 mean |x - z| - mean |x - x'| - mean |z - z'|

is 0 only where both are drawn alike. Its p-value comes from dealing the points anew to the two
sides. Of several kinds of points the least p-value counts, times their number. Three outcomes:

    alike            nothing speaks against it, and no label's share moved
    shares differ    labels are more or less frequent, and that explains it: held-out photos drawn
                     with weights w = exp(beta' y), whose labels have the shares estimated for the
                     new photos (raking), cannot be told from them
    pictures differ  neither explains it

A share moved if its estimate says so (Bonferroni over labels) and the mean probability of the label
differs more than the largest such difference in 95 of 100 deals. Below FEWEST photos on either side
nothing is said. A photo is *far* if its nearest held-out photo is farther than those of 99 in 100.

**Calibration alarm.** Under calibration an audited photo carries the label with its probability p.
Against that are set bets q of log-odds a logit(p) + b. A bet may begin at any audit j, with a share
w_j = 1 / (j (j + 1)) of the stake:

    E_t = sum over j <= t of  w_j mean over bets of  prod_{i=j..t} Q_i / P_i   +   1 / (t + 1)
    P = p^y (1 - p)^(1 - y),  Q likewise of q

E exceeds K / alpha for any of K labels at any time with chance at most alpha (Ville). Photos are
audited in an order drawn by hash: what people correct on their own is not a random sample.

**Share of a label now.** If photos with a label look as they did, and only are more or fewer,

    log r = a u + b - logit s,    (a, b) fitted on n held-out photos, s their share

and the share t now is where  psi(t) = sum (r - 1) / (1 + t (r - 1))  is 0 (Saerens et al. 2002).
psi has two errors: J = sum of the squared terms, and g' C g with g the gradient of psi in (a, b -
logit s) and C their covariance: that of (a, b), less 1 / (n s (1 - s)) for b (Anderson 1972). The
interval holds the t with  psi(t)^2 <= q^2 (J + g' C g), q Student's quantile of as many degrees
as the rarer side has held-out photos. The share moved if t = s is not in it, with J^2 s (1 - s) /
n added for the error of s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Numbers
from labelwise.base.bounds import edge
from labelwise.base.special import fit_slope_and_offset, log_expit, stdtrit

ALPHA = 0.05
CLIP = 1e-6
FAR = 30.0  # log-odds beyond which a photo is as good as sure
PRIOR = np.array([4.0, 0.25])  # precision of slope and offset before any held-out photo is seen
BETS = (  # slope a and offset b of the log-odds that each bet takes for true
    *((1.0, b) for b in (-1.5, -0.7, 0.7, 1.5)),
    *((a, 0.0) for a in (0.5, 0.75, 1.5)),
)


@dataclass(frozen=True)
class Alarm:
    """Evidence E against one label's probabilities: now, its ``largest`` ever, its threshold."""

    label: str
    audited: int
    present: int
    expected: float
    evidence: float
    largest: float
    threshold: float

    @property
    def raised(self) -> bool:
        return self.largest >= self.threshold


def calibration_alarm(
    label: str, probs: Sequence[float] | Numbers, truth: Sequence[bool], labels: int = 1
) -> Alarm:
    """Return the alarm of one of ``labels`` labels after audited photos, in their order."""
    odds, y = _log_odds(probs), np.asarray(truth, np.bool_)
    a, b = np.array(BETS).T
    bets = a[:, None] * odds + b[:, None]  # (bets, photos)
    present, absent = log_expit(bets) - log_expit(odds), log_expit(-bets) - log_expit(-odds)
    gain = np.where(y, present, absent)
    since = gain.cumsum(axis=1)
    begins = np.arange(1, len(odds) + 1)
    stakes = -np.log(begins * (begins + 1.0)) - (since - gain)  # less what was there before j
    logs = since + np.logaddexp.accumulate(stakes, axis=1)
    logs = np.logaddexp.reduce(logs, axis=0) - np.log(len(BETS))
    path = np.exp(np.minimum(np.logaddexp(logs, -np.log(begins + 1.0)), 300.0))
    path = np.concatenate([np.ones(1), path])
    expected = float(np.clip(np.asarray(probs, np.float64), CLIP, 1 - CLIP).sum())
    audited = len(odds), int(y.sum()), expected
    return Alarm(label, *audited, float(path[-1]), float(path.max()), labels / ALPHA)


def audit_order(label: str, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number per photo by label and row alone (splitmix64): the order of its audits."""
    seed = np.uint64(int.from_bytes(blake2b(label.encode(), digest_size=8).digest()))
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class LabelShare:
    """The share of photos with a label, before and now; ``moved`` if beyond the errors of both."""

    label: str
    before: float
    now: float
    low: float
    high: float
    photos: int
    moved: bool

    def __str__(self) -> str:
        return f"{self.label} {self.before:.1%} before, {self.now:.1%} now"


def moved_shares(shares: Iterable[LabelShare]) -> tuple[LabelShare, ...]:
    """Return the shares that moved, the largest difference first."""
    moved = (share for share in shares if share.moved)
    return tuple(sorted(moved, key=lambda share: -abs(share.now - share.before)))


def first_shares(shares: Sequence[LabelShare]) -> str:
    """Return the first three shares in words, and how many more there are."""
    more = f" and {len(shares) - 3} more" if len(shares) > 3 else ""
    return ", ".join(map(str, shares[:3])) + more


@dataclass(frozen=True, eq=False)
class HeldOutShare:
    """The share of a label in held-out photos; slope, offset of log r, and their covariance."""

    share: float
    photos: int
    slope: float
    offset: float
    covariance: Numbers

    def reach(self, confidence: float) -> float:
        rarer = self.photos * min(self.share, 1 - self.share)
        return float(stdtrit(round(rarer), (1 + confidence) / 2))

    def log_ratios(self, probs: Numbers) -> Numbers:
        """Return how much more probable each photo is with the label than without it, in logs."""
        return np.clip(self.slope * _log_odds(probs) + self.offset, -FAR, FAR)


def held_out_share(probs: Numbers, labels: NDArray[np.bool_]) -> HeldOutShare | None:
    """Return what held-out photos say of a label; None unless some carry it and some do not."""
    odds, y = _log_odds(probs), np.asarray(labels, np.float64)
    if not 0 < y.sum() < len(y):
        return None
    (slope, offset), covariance = fit_slope_and_offset(odds, y, PRIOR)
    share, photos = float(y.mean()), len(y)
    error = 1 / (photos * share * (1 - share))
    covariance[1, 1] = max(covariance[1, 1] - error, 0.0)
    bound = sqrt(covariance[0, 0] * covariance[1, 1])  # of a covariance that a prior cut short
    covariance[0, 1] = covariance[1, 0] = np.clip(covariance[0, 1], -bound, bound)
    shift = np.log(share) - np.log1p(-share)
    return HeldOutShare(share, photos, float(slope), float(offset - shift), covariance)


def held_out_shares(
    probs: Numbers, labels: NDArray[np.bool_], observed: NDArray[np.bool_] | None = None
) -> list[HeldOutShare | None]:
    """Return what held-out photos say of every label, from (N, K) arrays; see above."""
    seen = np.ones(probs.shape, np.bool_) if observed is None else observed
    columns = zip(probs.T, labels.T, seen.T, strict=True)
    return [held_out_share(p[known], y[known]) for p, y, known in columns]


def estimate_share(
    label: str, probs: Numbers, held_out: HeldOutShare, confidence: float = 0.95
) -> LabelShare:
    """Return the share of a label among photos with these probabilities; see the module's text."""
    odds, logs = _log_odds(probs), held_out.log_ratios(probs)
    excess = np.expm1(logs)

    def score(t: float) -> float:
        return float((excess / (1 + t * excess)).sum())

    def standard_error(t: float, extra: float = 0.0) -> float:
        below = 1 + t * excess
        squares = float(((excess / below) ** 2).sum())
        slopes = np.exp(logs) / below**2
        gradient = np.array([float(slopes @ odds), float(slopes.sum())])
        return sqrt(squares + gradient @ held_out.covariance @ gradient + extra * squares**2)

    if not len(odds):
        return LabelShare(label, held_out.share, held_out.share, 0.0, 1.0, 0, False)
    reach = held_out.reach(confidence)
    now = edge(lambda t: score(t) < 0, CLIP, 1 - CLIP)
    low = edge(lambda t: score(t) > reach * standard_error(t), now, 0.0)
    high = edge(lambda t: score(t) < -reach * standard_error(t), now, 1.0)
    before = held_out.share
    error = before * (1 - before) / held_out.photos
    moved = abs(score(before)) > reach * standard_error(before, error)
    return LabelShare(label, before, now, low, high, len(odds), moved)


def _log_odds(probs: Sequence[float] | Numbers) -> Numbers:
    p = np.clip(np.asarray(probs, np.float64), CLIP, 1 - CLIP)
    return np.asarray(np.log(p) - np.log1p(-p))


Outcome = Literal["alike", "shares differ", "pictures differ", "unknown"]
Points = NDArray[np.float32]

FEWEST = 50
POINTS = 1000  # of each side in the test
PERMUTATIONS = 499
PICTURES_ALPHA = 0.01
SHARES_ALPHA = 0.05
FAR_QUANTILE = 0.99
ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Likeness:
    """Whether photos are like the held-out ones; ``shares`` are those of the labels now.

    ``p_value`` is of the test of all photos, ``p_adapted`` of the one after the held-out photos
    were drawn with the shares of the new ones; None where it was not needed. ``reason`` says why
    the outcome is unknown, where it is not for too few photos.
    """

    outcome: Outcome
    held_out: int
    photos: int
    p_value: float | None = None
    p_adapted: float | None = None
    shares: tuple[LabelShare, ...] = ()
    reason: str = ""

    @property
    def moved(self) -> tuple[LabelShare, ...]:
        return moved_shares(self.shares)

    def sentence(self, known: str = "held-out") -> str:
        """Return what a person should know of it, and what to do; ``known`` names the photos."""
        if self.outcome == "unknown":
            few = self.held_out < FEWEST
            which, count = (f"{known} photos", self.held_out) if few else ("photos", self.photos)
            there = f"there {'is' if count == 1 else 'are'} {count}"
            reason = self.reason or f"it takes {FEWEST} {which}, and {there}"
            return f"Whether these photos are like the {known} ones cannot be known: {reason}."
        sides = f"{self.held_out:,} {known} and {self.photos:,} of these photos compared"
        if self.outcome == "alike":
            return f"These photos do not differ noticeably from the {known} ones ({sides})."
        if self.outcome == "pictures differ":
            return (
                f"These photos do not look like the {known} ones ({sides}, "
                f"p = {self.p_value:.3f}): probabilities and counts may be wrong. A count by "
                "answers holds whatever the photos look like: labelwise count --ask 150."
            )
        named = first_shares(self.moved)
        return (
            f"Labels are more or less frequent than among the {known} photos ({named}; {sides}): "
            "probabilities and counts are off for them. A count by answers holds all the same: "
            "labelwise count --ask 150."
        )


@dataclass(frozen=True, eq=False)
class PointsOfPhotos:
    """One more kind of points: those of the held-out photos ``rows`` (n,), and of new photos."""

    rows: NDArray[np.int64]
    held_out: Points
    photos: Points


def compare_photos(
    names: Sequence[str],
    held_out: Points,
    labels: Numbers,
    known_shares: Sequence[HeldOutShare | None],
    photos: Points,
    probs: Numbers,
    *,
    own_probs: Numbers,
    more: PointsOfPhotos | None = None,
) -> Likeness:
    """Compare photos (m, D) with held-out ones (n, D), given as points of any kind.

    ``labels`` (n, K) of the held-out photos may be soft where they are not known, ``own_probs``
    (n, K) are what the model says of them; ``probs`` (m', K) are of photos of the same library,
    from which the shares are estimated. ``more`` are points of another kind, of at least FEWEST
    photos on each side. Points and probabilities must not have been fitted on one side alone.
    """
    random = np.random.default_rng(0)
    sizes = len(held_out), len(photos)
    if min(sizes) < FEWEST:
        return Likeness("unknown", *sizes)
    differ = different_means(own_probs, probs, np.random.default_rng([0, 1]))
    shares: tuple[LabelShare, ...] = ()
    for name, p, known, apart in zip(names, probs.T, known_shares, differ, strict=True):
        if known is not None:
            share = estimate_share(name, p, known, 1 - SHARES_ALPHA / len(names))
            shares += (replace(share, moved=share.moved and bool(apart)),)
    moved = [share for share in shares if share.moved]
    given = [PointsOfPhotos(np.arange(len(held_out)), held_out, photos)]
    kinds = []
    for kind in given if more is None else [*given, more]:
        own, new = _drawn(random, len(kind.rows)), _drawn(random, len(kind.photos))
        kinds.append(PointsOfPhotos(kind.rows[own], kind.held_out[own], kind.photos[new]))

    def least_p(kinds: Sequence[PointsOfPhotos]) -> float:
        """Return the p-value of "all kinds of points are drawn alike" (Bonferroni)."""
        least = min(energy_test(kind.held_out, kind.photos, random) for kind in kinds)
        return min(1.0, len(kinds) * least)

    p_value = least_p(kinds)
    counts = len(kinds[0].rows), len(kinds[0].photos)
    if p_value > PICTURES_ALPHA:
        return Likeness("shares differ" if moved else "alike", *counts, p_value, shares=shares)
    p_adapted = None
    if moved:
        columns = [list(names).index(share.label) for share in moved]
        weights = raked_weights(labels[:, columns], np.array([share.now for share in moved]))
        kept = random.random(len(weights)) < weights / weights.max()
        every = np.flatnonzero(kept)
        every = every[_drawn(random, len(every))]
        adapted = [replace(kinds[0], rows=every, held_out=held_out[every])]
        adapted += [
            replace(kind, rows=kind.rows[kept[kind.rows]], held_out=kind.held_out[kept[kind.rows]])
            for kind in kinds[1:]
        ]
        if min(len(side.rows) for side in adapted) >= FEWEST:
            p_adapted = least_p(adapted)
            if p_adapted > PICTURES_ALPHA:
                return Likeness("shares differ", *counts, p_value, p_adapted, shares)
    return Likeness("pictures differ", *counts, p_value, p_adapted, shares)


def energy_test(first: Points, second: Points, random: np.random.Generator) -> float:
    """Return the p-value of "both are drawn alike" for points (n, D) and (m, D)."""
    both = np.concatenate([first, second])
    mean, spread = _scale(both)
    points = (both - mean) / spread
    squares = (points**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(distances, 0)
    distances = np.sqrt(np.maximum(distances, 0))
    size, n = len(distances), len(first)
    dealt = _dealt(size, n, random)
    sums = distances @ dealt  # to the first side, of every point
    inside = np.einsum("ij,ij->j", sums, dealt, dtype=np.float64)
    across = sums.sum(axis=0, dtype=np.float64) - inside
    outside = distances.sum(dtype=np.float64) - inside - 2 * across
    m = size - n
    energy = 2 * across / (n * m) - inside / n**2 - outside / m**2
    return float((energy >= energy[0] - 1e-9 * abs(energy[0])).mean())


def different_means(
    first: Numbers, second: Numbers, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Mask (K,) of the columns whose means differ between two samples, by a permutation test.

    The chance that any column is marked though none differs is at most 5 %.
    """
    both = np.concatenate([first, second])
    size, n = len(both), len(first)
    dealt = _dealt(size, n, random)
    sums = (both - both.mean(axis=0)).T @ dealt  # of the first side, (K, deals)
    scale = both.std(axis=0) * np.sqrt(n * (size - n) / size)
    largest = np.abs(sums) / np.where(scale > 0, scale, np.inf)[:, None]
    allowed = int(SHARES_ALPHA * dealt.shape[1]) - 1  # deals, beside ours, that may be as extreme
    return np.asarray(largest[:, 0] > np.sort(largest[:, 1:].max(axis=0))[::-1][allowed])


def _dealt(size: int, n: int, random: np.random.Generator) -> Points:
    """Return which of ``size`` rows are on the first side, in ours and in deals at random."""
    dealt = np.zeros((size, PERMUTATIONS + 1), np.float32)
    dealt[:n, 0] = 1
    for column in range(1, PERMUTATIONS + 1):
        dealt[random.permutation(size)[:n], column] = 1
    return dealt


def raked_weights(labels: Numbers, shares: Numbers) -> Numbers:
    """Return weights (n,) = exp(labels beta) that meet these shares of labels (n, K) if any do."""
    beta = np.zeros(labels.shape[1])
    weights = np.full(len(labels), 1 / len(labels))
    for _ in range(100):
        mean = weights @ labels
        gap = shares - mean
        spread = (labels * weights[:, None]).T @ labels - np.outer(mean, mean)
        # Labels that always add up to 1 leave a direction in which nothing changes.
        step = np.linalg.lstsq(spread, gap, rcond=1e-4)[0]
        beta += step * min(1.0, 1.0 / max(np.abs(step).max(), 1e-12))
        logs = labels @ beta
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        if np.abs(step).max() < 1e-9:
            break
    return weights


def far_points(held_out: Points, photos: Points) -> NDArray[np.float32]:
    """Return how far each photo (m,) is from its nearest held-out one; above 1 it is *far*."""
    mean, spread = _scale(held_out)
    reference = (held_out - mean) / spread
    own = _nearest(reference, reference, apart_from_itself=True)
    limit = max(float(np.quantile(own, FAR_QUANTILE, method="higher")), 1e-12)
    return _nearest((photos - mean) / spread, reference) / np.float32(limit)


def _nearest(points: Points, reference: Points, apart_from_itself: bool = False) -> Points:
    nearest = np.empty(len(points), np.float32)
    squares = (reference**2).sum(axis=1)
    for start in range(0, len(points), ROWS_AT_ONCE):
        block = points[start : start + ROWS_AT_ONCE]
        between = squares - 2 * block @ reference.T
        if apart_from_itself:
            np.fill_diagonal(between[:, start:], np.inf)
        nearest[start : start + len(block)] = between.min(axis=1) + (block**2).sum(axis=1)
    return np.sqrt(np.maximum(nearest, 0))


def _scale(points: Points) -> tuple[Points, Points]:
    spread = points.std(axis=0)
    return points.mean(axis=0), np.where(spread > 0, spread, 1).astype(np.float32)


def _drawn(random: np.random.Generator, size: int) -> NDArray[np.int64]:
    return np.arange(size) if size <= POINTS else random.permutation(size)[:POINTS]
