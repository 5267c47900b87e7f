"""What the test photos can tell of a model: a range of its skill, and whether probabilities hold.

Skill is the share of the way from the best answer that ignores the photo to perfection:

    skill = mean of (mAP - chance) / (1 - chance) and (F1 - constant) / (1 - constant)

``chance`` is the mAP of a random ranking, ``constant`` the pooled F1 of the best labels that are
given to every photo. Its range comes from DRAWS resamples of the photos, or of their groups. A test
of few photos cannot show it all: average precision of few positives is too high, a perfect test
proves little, and labels without a positive (a share u of them) may be anything from 0 to 1:

    low  = (2.5 % quantile - mean over tested labels of 1 / (8 positives)) (1 - u / 2)
    high = h + (1 - h) u / 2,   h = 97.5 % quantile + 1 / photos

(u, not u / 2, where no tags are given and the skill is that of the ranking alone). Of large tables
the standard error comes from what each photo moves the skill (infinitesimal jackknife).

Probabilities are tested by the sums of (y - p) [1, logit p], chi-square with 2 degrees of freedom
under their variance V if p is exact, divided by the design effect of photos or groups

    D = max(1, tr(V^-1 sum of squares of the sums by photo) / 2)

and by the sums of y - p of each label. The size of an error is the mean of |sigmoid(a + b logit p)
- p| at the likeliest a, b (Cox 1958): binned errors are above 0 for exact probabilities too. What
so many photos could show is the size that the test finds in 4 of 5 draws: noncentrality 9.63 D.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Floats, Mask, Numbers, Values
from labelwise.base.groups import Groups
from labelwise.base.special import expit, gammaincc
from labelwise.evaluation.calibration import Known
from labelwise.evaluation.cause import TrainingRows, likeliest_cause
from labelwise.evaluation.evaluation import Judgement, Trust
from labelwise.evaluation.intervals import labels_with_positives, mean_ap_influence, mean_influence

DRAWS = 200
FEWEST = 6  # photos or groups; draws of fewer hardly differ
MOST_DRAWN = 40_000_000  # draws times entries; the influence of each photo is enough beyond it
LEVEL, LEVEL_BY_LABEL = 0.025, 0.01  # of the two tests: together at most 5 %
FOUND_OFTEN = 9.63  # noncentrality that chi-square with 2 degrees shows in 4 of 5 draws at 5 %
CELLS, WIDEST = 1401, 14.0  # of log-odds, for what needs no single photo
EXPECTED = 1.0  # variance of a label's count from which its normal law is good enough


def judge(
    scores: Floats,
    known: Known,
    probs: Floats | None,
    sets: Mask | None,
    names: Sequence[str],
    training: TrainingRows | None = None,
    copies: Mask | None = None,
) -> Judgement:
    """Return what scores, probabilities and sets (N, K) say; the last two may not be there.

    What is known of the ``training`` photos tells causes that the test alone cannot. ``copies``
    (N,) of them are judged, and the others also alone.
    """
    low, high = skill_range(scores, known, sets)
    without: tuple[float | None, float | None] = None, None
    if copies is not None and copies.any() and not copies.all():
        others = ~copies
        alone = None if sets is None else sets[others]
        without = skill_range(scores[others], known.take(others), alone)
    groups = known.groups
    trust = None if probs is None else trust_of(probs, known.labels, known.observed, groups)
    right, given = (0, 0) if sets is None else _right_and_given(sets, known)
    untested = tuple(np.asarray(names)[~known.present.any(0)].tolist())
    seen, present = known.counts(), known.present.sum(0)
    cause = likeliest_cause(seen, present, trust, training or TrainingRows(), names)
    return Judgement(
        low=low,
        high=high,
        photos=len(scores) if groups is None else groups.count,
        grouped=groups is not None and not groups.are_photos,
        untested=untested,
        tags=None if sets is None else given,
        right=right,
        present=int(present.sum()),
        trust=trust,
        cause=cause,
        copies=0 if copies is None else int(copies.sum()),
        low_without=without[0],
        high_without=without[1],
    )


def _right_and_given(sets: Mask, known: Known) -> tuple[int, int]:
    given = sets if known.observed is None else sets & known.observed
    return int((given & known.present).sum()), int(given.sum())


def skill_range(
    scores: Floats, known: Known, sets: Mask | None
) -> tuple[float | None, float | None]:
    """Return the 95 % range of the skill over all labels; None where nothing is present."""
    tested = known.present.any(0)
    if not tested.any():
        return None, None
    groups = known.groups or Groups(np.arange(len(scores)), len(scores))
    if groups.count < FEWEST:
        return -1.0, 1.0
    skill = Skill.of(scores, known, sets)
    if DRAWS * scores.size <= MOST_DRAWN:
        rng = np.random.default_rng(0)
        counts = rng.multinomial(groups.count, np.full(groups.count, 1 / groups.count), DRAWS)
        drawn = skill(counts.astype(np.float32)[:, groups.codes])
        drawn = drawn[np.isfinite(drawn)]
        low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (0.0, 1.0)
    else:
        centre, moved = skill.influence(scores)
        half = 1.96 * float(np.linalg.norm(groups.sums(moved)))
        low, high = centre - half, centre + half
    positives = groups.counted(known.present).sum(0)
    low = low - (1 / positives[tested]).mean() / 8
    high = min(1.0, high + 1 / groups.count)
    missing = 1 - float(tested.mean())
    missing = missing if sets is None else missing / 2
    return float(max(low, -1.0) * (1 - missing)), float(high + (1 - high) * missing)


@dataclass(frozen=True, eq=False)
class Skill:
    """The skill of photos under weights, one row of them per draw."""

    known: Known
    sets: Mask | None
    rankings: tuple[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]], ...]

    @classmethod
    def of(cls, scores: Floats, known: Known, sets: Mask | None) -> "Skill":
        """Sort the photos of each label: their order, where positives' ties end, and begin."""
        rankings = []
        for rows, values, hits in labels_with_positives(scores, known.present, known.observed):
            order = np.argsort(-values, kind="stable")
            ordered = values[order]
            last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
            tie = last[np.searchsorted(last, np.flatnonzero(hits[order]))]
            rankings.append((np.flatnonzero(rows)[order], np.flatnonzero(hits[order]), tie))
        given = sets if sets is None or known.observed is None else sets & known.observed
        return cls(known, given, tuple(rankings))

    def __call__(self, weights: NDArray[np.float32]) -> Numbers:
        """Return the skill (B,) under weights (B, N); NaN where no label has a positive."""
        present, seen = self.known.present.astype(np.float32), self.known.observed
        positives = (weights @ present).astype(np.float64)
        known = np.broadcast_to(weights.sum(1, keepdims=True), positives.shape)
        if seen is not None:
            known = weights @ seen.astype(np.float32)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.stack(list(self._precisions(weights)), 1)
            ranked = ~np.isnan(precision)
            share = (positives / known)[:, self.known.present.any(0)]
            mean, chance = (
                np.where(ranked, side, 0).sum(1) / ranked.sum(1) for side in (precision, share)
            )
            skill = (mean - chance) / np.maximum(1 - chance, 1e-9)
            if self.sets is not None:
                given = (weights @ self.sets.sum(1, dtype=np.float32)).astype(np.float64)
                hits = (self.sets & self.known.present).sum(1, dtype=np.float32)
                truth = positives.sum(1)
                f1 = 2 * (weights @ hits) / (given + truth)
                constant = constant_f1(positives, known)
                skill = (skill + (f1 - constant) / np.maximum(1 - constant, 1e-9)) / 2
        return np.asarray(skill, np.float64)

    def _precisions(self, weights: NDArray[np.float32]) -> Iterator[Numbers]:
        """Yield the average precision (B,) of each label that has a positive."""
        for order, hits, tie in self.rankings:
            ordered = weights[:, order]
            above = np.cumsum(ordered, 1)[:, tie]
            own = ordered[:, hits]
            right = np.cumsum(own, 1)[:, np.searchsorted(hits, tie, side="right") - 1]
            yield (own * right / np.maximum(above, 1e-9)).sum(1) / own.sum(1)

    def influence(self, scores: Floats) -> tuple[float, Numbers]:
        """Return the skill, and by how much each photo (N,) moves it."""
        present, seen = self.known.present, self.known.observed
        whole = np.ones((1, len(scores)), np.float32)
        centre = float(self(whole)[0])
        observed = np.ones(present.shape, bool) if seen is None else seen
        some = present.any(0)
        share = present.sum(0) / np.maximum(observed.sum(0), 1)
        chance = float(share[some].mean())
        of_chance = (present - share * observed)[:, some] / observed.sum(0)[some]
        mean = float(np.mean([precision[0] for precision in self._precisions(whole)]))
        moved = mean_ap_influence(scores, present, seen) / (1 - chance)
        moved = moved - (1 - mean) / (1 - chance) ** 2 * of_chance.mean(1)
        if self.sets is not None:
            order = np.argsort(-share, kind="stable")
            right, size = present[:, order].cumsum(1), observed[:, order].cumsum(1)
            truth, hits = present.sum(1), (self.sets & present).sum(1)
            best = int((2 * right.sum(0) / (size.sum(0) + truth.sum())).argmax())
            sides = (hits, self.sets.sum(1)), (right[:, best], size[:, best])
            (f1, of_f1), (constant, of_constant) = (
                (2 * a.sum() / (b + truth).sum(), mean_influence(2.0 * a, b + truth))
                for a, b in sides
            )
            of_tags = of_f1 / (1 - constant) - (1 - f1) / (1 - constant) ** 2 * of_constant
            moved = (moved + of_tags) / 2
        return centre, moved


def constant_f1(positives: Numbers, known: Mask) -> Numbers:
    """Return the best pooled F1 (B,) of the same labels for every photo, from counts (B, K)."""
    order = np.argsort(-positives / np.maximum(known, 1e-9), axis=1, kind="stable")
    right, given = (np.take_along_axis(side, order, 1).cumsum(1) for side in (positives, known))
    return np.asarray((2 * right / (given + positives.sum(1, keepdims=True))).max(1), np.float64)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Entries counted in cells of log-odds: their log-odds x, sum of labels y, count n (M,)."""

    x: Numbers
    y: Numbers
    n: Numbers

    @classmethod
    def of(cls, odds: Numbers, labels: Numbers) -> "_Cells":
        cell = np.rint((odds.clip(-WIDEST, WIDEST) + WIDEST) / (2 * WIDEST) * (CELLS - 1))
        sums = (np.bincount(cell.astype(np.intp), side, CELLS) for side in (None, odds, labels))
        count, total, right = (side.astype(np.float64) for side in sums)
        some = count > 0
        return cls(total[some] / count[some], right[some], count[some])

    def fitted(self) -> tuple[Numbers, Numbers]:
        """Return the likeliest (a, b) of sigmoid(a + b x), and their precision (2, 2)."""
        design, line = np.stack([np.ones_like(self.x), self.x]), np.array([0.0, 1.0])
        precision = np.eye(2)
        for _ in range(40):
            p = expit(line @ design)
            precision = (design * self.n * p * (1 - p)) @ design.T + 1e-3 * np.eye(2)
            step = np.linalg.solve(precision, design @ (self.y - self.n * p))
            step *= min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-12))
            line = line + step
            if np.abs(step).max() < 1e-6:
                break
        return line, precision

    def sizes(self, lines: Numbers) -> Numbers:
        """Return the mean change (L,) that lines (L, 2) of (a, b) make to the probabilities."""
        bent = expit(lines[:, :1] + lines[:, 1:] * self.x)
        return np.asarray(np.abs(bent - expit(self.x)) @ self.n / self.n.sum(), np.float64)

    def least_shown(self, variance: Numbers, design: float) -> float:
        """Return the size of an error that a test with this variance (2, 2) finds in 4 of 5."""
        low, high = np.zeros(4), np.full(4, 6.0)
        for _ in range(20):
            middle = (low + high) / 2
            bent = expit(_bends(middle) @ np.stack([np.ones_like(self.x), self.x]))
            gap = (bent - expit(self.x)) * self.n
            moved = np.stack([gap.sum(1), gap @ self.x], 1)
            seen = np.einsum("ij,jk,ik->i", moved, np.linalg.inv(variance), moved) / design
            hidden = seen < FOUND_OFTEN
            low, high = np.where(hidden, middle, low), np.where(hidden, high, middle)
        return float(self.sizes(_bends(high)).max())


def _bends(t: Numbers) -> Numbers:
    """Return four errors (4, 2) of (a, b): too sure, too unsure, too few and too many expected."""
    return np.array([[0, np.exp(-t[0])], [0, np.exp(t[1])], [t[2], 1], [-t[3], 1]])


def trust_of(
    probs: Floats, labels: Values, observed: Mask | None, groups: Groups | None
) -> Trust | None:
    """Return what the labels say of probabilities (N, K); None where nothing can be tested."""
    p = np.asarray(probs, np.float64).clip(1e-6, 1 - 1e-6)
    seen = np.ones(p.shape, bool) if observed is None else observed
    odds, off = np.log(p / (1 - p)), np.where(seen, labels - p, 0.0)
    spread = np.where(seen, p * (1 - p), 0.0)
    by_photo = np.stack([off.sum(1), (off * odds).sum(1)], 1)
    sides = [float((spread * odds**power).sum()) for power in (0, 1, 2)]
    variance = np.array([sides[:2], sides[1:]]) + 1e-9 * np.eye(2)
    by_unit = by_photo if groups is None else groups.sums(by_photo)
    inverse, total = np.linalg.inv(variance), by_photo.sum(0)
    design = max(1.0, float(np.einsum("ui,ij,uj->", by_unit, inverse, by_unit)) / 2)
    p_value = float(np.exp(-(total @ inverse @ total) / design / 2))
    by_label = _label_test(off if groups is None else groups.sums(off), spread.sum(0))
    cells = _Cells.of(odds[seen], np.asarray(labels, np.float64)[seen])
    line, precision = cells.fitted()
    turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    around = np.linalg.inv(np.linalg.cholesky(precision)).T @ [np.cos(turn), np.sin(turn)]
    reach = np.sqrt(5.99 * design)
    sizes = cells.sizes(line + np.concatenate([[[0, 0]], reach * around.T, reach / 2 * around.T]))
    wrong = p_value <= LEVEL or by_label <= LEVEL_BY_LABEL
    said = float(p[seen].sum())
    return Trust(
        p_value=p_value,
        p_by_label=by_label,
        wrong=wrong,
        size=float(sizes[0]),
        low=float(sizes.min()) if wrong else 0.0,
        high=float(sizes.max()),
        shown=cells.least_shown(variance, design),
        slope=float(line[1].clip(-100, 100)),
        came=min(float(np.asarray(labels, np.float64)[seen].sum()) / said, 1e9),
    )


def _label_test(off: Numbers, variance: Numbers) -> float:
    """Return the p-value of the sums of y - p by label, from those by photo or group (U, K).

    Their squares over the variance add up to a weighted chi-square, since labels depend on each
    other: as many degrees of freedom as have its mean and variance (Satterthwaite).
    """
    some = variance >= EXPECTED
    if not some.any():
        return 1.0
    scaled = off[:, some] / np.sqrt(variance[some])
    cross = scaled.T @ scaled
    np.fill_diagonal(cross, np.maximum(np.diag(cross), 1.0))
    mean, square = float(np.trace(cross)), float((cross**2).sum())
    statistic = float((scaled.sum(0) ** 2).sum())
    return float(gammaincc(mean**2 / square / 2, statistic * mean / square / 2))
