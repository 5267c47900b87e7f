"""Do probabilities still mean what they say? What can be told while a model is in use.

**Calibration alarm.** If probabilities mean what they say, then whatever happened before, an
audited photo carries the label with its probability p. Against that are set bets q on how it may
have gone wrong (too low, too high, too sure, not sure enough), each a log-odds a logit(p) + b. A
bet may begin at any audit j, with a share w_j = 1 / (j (j + 1)) of the stake:

    E_t = sum over j <= t of  w_j mean over bets of  prod_{i=j..t} Q_i / P_i   +   1 / (t + 1)
    P = p^y (1 - p)^(1 - y),  Q likewise of q

Under calibration E is 1 on average at every moment, and exceeds K / alpha for any of K labels at
any time, however often one looks, with chance at most alpha (Ville). What is staked later was not
lost while all was well, so a change after thousands of calm audits is still seen. Photos are
audited in an order drawn by hash, not by interest: what people correct on their own is not a
random sample and is left out.

**Share of a label now.** Let photos with a label look as they did, and only be more or fewer. Then
a photo with log-odds u is more probable by the ratio r where it carries the label than where not:

    log r = a u + b - logit s,    (a, b) fitted on n held-out photos, s their share

and the share t now is where  psi(t) = sum (r - 1) / (1 + t (r - 1))  is 0 (the limit of the EM of
Saerens, Latinne and Decaestecker 2002). psi has two errors: of the photos now, J = sum of the
squared terms, and of the fit, g' C g with g the gradient of psi in (a, b - logit s) and C their
covariance: that of (a, b), less 1 / (n s (1 - s)) for b, since b and logit s err together
(Anderson 1972). The interval holds the t with  psi(t)^2 <= q^2 (J + g' C g), q the quantile of
Student's law with as many degrees as there are held-out photos that carry the label, or that do
not, whichever are fewer. The share moved if t = s is not in it, with J^2 s (1 - s) / n added for
the error of s, which does not depend on the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from labelwise.numeric.bounds import edge
from labelwise.numeric.logistic import fit_slope_and_offset
from labelwise.numeric.special import expit, log_expit, stdtrit

ALPHA = 0.05
CLIP = 1e-6
FAR = 30.0  # log-odds beyond which a photo is as good as sure
PRIOR = np.array([4.0, 0.25])  # precision of slope and offset before any held-out photo is seen
BETS = (  # slope a and offset b of the log-odds that each bet takes for true
    *((1.0, b) for b in (-1.5, -0.7, 0.7, 1.5)),
    *((a, 0.0) for a in (0.5, 0.75, 1.5)),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alarm:
    """What audited photos say of one label: how strong the evidence is, and how it stands now.

    ``largest`` is the largest value that E ever had; ``threshold`` is where it becomes an alarm.
    """

    label: str
    audited: int
    present: int
    expected: float
    evidence: float
    largest: float
    threshold: float

    @property
    def raised(self) -> bool:
        """Whether the label's probabilities are no longer to be trusted."""
        return self.largest >= self.threshold


def calibration_alarm(
    label: str, probs: Sequence[float] | Floats, truth: Sequence[bool], labels: int = 1
) -> Alarm:
    """Return the alarm of one of ``labels`` labels after audited photos, in their order."""
    p = np.clip(np.asarray(probs, np.float64), CLIP, 1 - CLIP)
    y = np.asarray(truth, np.bool_)
    odds = np.log(p) - np.log1p(-p)
    a, b = np.array(BETS).T
    bets = a[:, None] * odds + b[:, None]  # (bets, photos)
    present, absent = log_expit(bets) - log_expit(odds), log_expit(-bets) - log_expit(-odds)
    gain = np.where(y, present, absent)
    since = gain.cumsum(axis=1)
    begins = np.arange(1, len(p) + 1)
    stakes = -np.log(begins * (begins + 1.0)) - (since - gain)  # less what was there before j
    logs = since + np.logaddexp.accumulate(stakes, axis=1)
    logs = np.logaddexp.reduce(logs, axis=0) - np.log(len(BETS))
    path = np.exp(np.minimum(np.logaddexp(logs, -np.log(begins + 1.0)), 300.0))
    path = np.concatenate([np.ones(1), path])
    return Alarm(
        label,
        len(p),
        int(y.sum()),
        float(p.sum()),
        float(path[-1]),
        float(path.max()),
        labels / ALPHA,
    )


def audit_order(label: str, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a random number per photo: the order in which they are audited for a label.

    It depends on the label and the row alone (splitmix64), so it is the same tomorrow.
    """
    seed = np.uint64(int.from_bytes(blake2b(label.encode(), digest_size=8).digest()))
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class LabelShare:
    """The share of photos with a label: among held-out photos, and now with its interval.

    ``moved`` says whether the two differ by more than the errors of both.
    """

    label: str
    before: float
    now: float
    low: float
    high: float
    photos: int
    moved: bool

    def __str__(self) -> str:
        return f"{self.label} {self.before:.1%} before, {self.now:.1%} now"


def first_shares(shares: Sequence[LabelShare], most: int = 3) -> str:
    """Return the first shares in words, and how many more there are."""
    more = f" and {len(shares) - most} more" if len(shares) > most else ""
    return ", ".join(map(str, shares[:most])) + more


@dataclass(frozen=True, eq=False)
class HeldOutShare:
    """What held-out photos say of a label: its share, and how log-odds tell who carries it.

    ``slope`` and ``offset`` give log r, ``covariance`` is theirs; see the module's text.
    """

    share: float
    photos: int
    slope: float
    offset: float
    covariance: Floats

    def reach(self, confidence: float) -> float:
        """Return how many standard errors an interval reaches to each side."""
        rarer = self.photos * min(self.share, 1 - self.share)
        return float(stdtrit(round(rarer), (1 + confidence) / 2))

    def log_ratios(self, probs: Floats) -> Floats:
        """Return how much more probable each photo is with the label than without it, in logs."""
        return np.clip(self.slope * _log_odds(probs) + self.offset, -FAR, FAR)

    def adapted(self, probs: Floats, share: float) -> Floats:
        """Return the probabilities (n,) where the label has another share."""
        t = min(max(share, CLIP), 1 - CLIP)
        values: Floats = expit(self.log_ratios(probs) + np.log(t) - np.log1p(-t))
        return values


def held_out_share(probs: Floats, labels: NDArray[np.bool_]) -> HeldOutShare | None:
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
    probs: Floats, labels: NDArray[np.bool_], observed: NDArray[np.bool_] | None = None
) -> list[HeldOutShare | None]:
    """Return what held-out photos say of every label, from (N, K) arrays; see above."""
    return [
        held_out_share(probs[seen, column], labels[seen, column])
        for column in range(probs.shape[1])
        for seen in (slice(None) if observed is None else observed[:, column],)
    ]


def estimate_share(
    label: str, probs: Floats, held_out: HeldOutShare, confidence: float = 0.95
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


def _log_odds(probs: Floats) -> Floats:
    p = np.clip(np.asarray(probs, np.float64), CLIP, 1 - CLIP)
    return np.asarray(np.log(p) - np.log1p(-p))
