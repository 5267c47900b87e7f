"""Fit: a linear classifier on frozen features, for which every labelled row trains and chooses.

Rows are dealt into folds. A head solved without a fold gives its out-of-fold logits. On these the
strength (L2 weight) of each label and its calibrator are chosen; then the head is solved again on
all rows with the same strength per row.

All folds are solved at once: a label without the rows of a fold is one more column of the same
problem (:mod:`labelwise.base.newton`), and each strength starts from the solution of the last one.

**Strength.** Strengths fall by tens until the out-of-fold loss rises, then the place between is
sought. The power of ten of a label's strength is normal around the common one, and its out-of-fold
loss is minus the log-likelihood of a power. This is done for the loss of the logits and for their
loss after a shared Platt scaling, and the stronger choice is taken: the calibrated loss alone runs
away with few rows, the other alone is too strong with many. The common power is itself normal
around USUAL: by chance a weak head tells ten rows apart that it did not see.

**Calibrator.** :mod:`labelwise.calibration.shrunken`. A softmax gets a temperature, which its
weights take up.

**One label per photo.** Where each photo has one label noted, a head that treats the others as
absent says whether photos seem to show several (:mod:`labelwise.calibration.noted`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from labelwise.base.array_api import A, like, namespace
from labelwise.base.arrays import Mask, Numbers, Values, to_numpy
from labelwise.base.convex import CoinLoss, ConvexLoss, ShareLoss
from labelwise.base.groups import Groups
from labelwise.base.newton import Design, minimise
from labelwise.calibration.noted import Shown, noted_once, shown_link
from labelwise.calibration.shrunken import SHARED, shared_line, shrunken
from labelwise.errors import DataError
from labelwise.links import Link, Sigmoid, Softmax, SoftmaxOrNoneLink

FOLDS, FOLDS_OF_FEW, FEW = 5, 10, 100  # folds; folds of fewer rows than FEW
FIRST, WEAKEST = 1.0, -8.0  # powers of ten of the L2 weight per row
STRONGEST = 3.0
USUAL, USUAL_ERROR = 0.0, 1.0  # the common power of ten, before any row is seen, and its deviation
STEP = 0.5  # between two powers beside the best
NO_LESS = 0.9999  # of the loss of ten times the weight: weaker ones are not tried
ROUGH, FINE = 1e-3, 1e-5  # of the loss may be left to gain: strengths that are tried, the folds
APART = 0.3  # powers of ten by which labels' strengths differ, before their rows are seen
AT_ONCE = 1 << 22  # logits of all folds: some ten times as many numbers are in memory
BALANCED = 1 << 16  # rows, or groups, up to which folds are balanced by label
TEMPERATURE_STEPS = 30
MOST_OF_CURVE = 1 << 22  # logits of all folds, above which no head of fewer rows is solved
NAME_WEIGHTS = (1.0, 2.0)  # deviations of the scores of label names, as logits
NAME_GAIN = 3.0  # nats of out-of-fold loss, for names to take part
NAME_ROWS = 30  # rows that all names together count for in the deviation of one
MOST_NAMED = 500  # rows, above which names gained nothing
STRONGER = (0.0, 0.5, 1.0)  # powers of ten that heads of fewer rows are held back more


@dataclass(frozen=True, eq=False)
class Fitted(Generic[A]):
    """A linear classifier, ``logits = features @ weight.T + bias``, and what its folds say.

    ``out_of_fold`` (N, K) are the logits of each row by the head that was solved without its fold.
    """

    weight: A  # (K, D)
    bias: A  # (K,)
    link: Link  # from logits to calibrated probabilities
    out_of_fold: NDArray[np.float32]  # (N, K)
    folds: NDArray[np.int64]  # (N,)
    strength: Numbers  # (K,), the L2 weight per row
    own: Link  # from logits to the probabilities that the loss knows
    notes: tuple[str, ...] = ()
    shown: Shown | None = None  # where photos seem to show more labels than the noted one
    fewer: tuple[NDArray[np.float32], ...] = ()  # out-of-fold logits by 1/4 and 1/2 of the others

    def logits(self, features: A) -> A:
        """Return the logits (M, K) of features (M, D)."""
        product: A = like(features, self.weight) @ self.weight.T + self.bias
        return product


def deal_folds(
    labels: Values, folds: int, *, groups: Values | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Return the fold (N,) of each row, whole groups in one fold, labels (N, K) balanced.

    The rarest labels are dealt first, each row (or group) to the fold that has least of its labels
    among those with room (Sechidis et al. 2011, "On the Stratification of Multi-Label Data").
    """
    if groups is not None:
        together = Groups.of(groups)
        summed = together.sums(labels.astype(np.float64))
        return deal_folds(summed, folds, seed=seed)[together.codes]
    rng = np.random.default_rng(seed)
    if len(labels) > BALANCED:
        return rng.permutation(np.arange(len(labels)) % folds)
    rare = labels / np.maximum(labels.sum(0), 1)
    order = rng.permutation(len(labels))
    order = order[np.argsort(-rare[order].max(1, initial=0), kind="stable")]
    room = np.bincount(np.arange(len(labels)) % folds, minlength=folds)
    room = room[rng.permutation(folds)]
    there, fold = np.zeros((folds, labels.shape[1])), np.zeros(len(labels), np.int64)
    for row in order.tolist():
        load = there @ rare[row] + 1e-3 * rng.random(folds) * rare[row].max(initial=1e-9)
        fold[row] = chosen = int(np.where(room > 0, load, np.inf).argmin())
        room[chosen] -= 1
        there[chosen] += labels[row] / np.maximum(labels.sum(0), 1)
    return fold


def loss_of(
    method: str, labels: Numbers, observed: Mask | None
) -> tuple[ConvexLoss[np.ndarray], Link]:
    """Return the loss of a method for labels (N, K), and the link of its logits."""
    if method == "bce":
        return CoinLoss.of(labels, observed), Sigmoid()
    if method == "wan":  # an assumed absence weighs 1 / (K - 1) of a presence
        known = labels if observed is None else np.where(observed, labels, 0.0)
        return CoinLoss(known, (1 - known) / max(labels.shape[1] - 1, 1)), Sigmoid()
    none = method == "softmax-or-none"
    loss = ShareLoss.of(labels, observed, none=none)
    return loss, SoftmaxOrNoneLink() if none else Softmax()


def fit_noted(
    features: A,
    labels: Values,
    observed: Mask | None = None,
    *,
    several: bool = False,
    **how: Any,
) -> Fitted[A] | None:
    """Return the classifier of photos that seem to show more labels than the noted one, or None.

    None where each photo has several labels or seems to show just the one. With ``several`` photos
    are known to show several.
    """
    known = None if observed is None else np.where(observed, labels, 0)
    noted = labels if known is None else known
    if not noted_once(noted):
        return None
    fitted = fit(features, noted, **how)
    link, shown = shown_link(fitted.out_of_fold, noted, Sigmoid())
    if not (shown.several or (several and shown.labels_per_photo >= 1)):
        return None
    return replace(fitted, link=link, shown=shown)


def fit_named(
    features: Values,
    labels: Values,
    observed: Mask | None,
    towards: NDArray[np.float64],
    plain: Fitted[np.ndarray],
    **how: Any,
) -> Fitted[np.ndarray] | None:
    """Return a better classifier than the ``plain`` one that begins with scores of label names.

    ``towards`` (K, D) are the directions of these scores, 0 for labels without. Their weight is one
    of NAME_WEIGHTS deviations of the logits. A deviation is that of the rows and of NAME_ROWS more,
    which have the mean variance of all names: ten photos without a dog say little of how far scores
    of dogs reach. None unless the out-of-fold loss is lower by NAME_GAIN nats.
    """
    scores = features @ towards.T
    spread = scores.var(0)
    named = spread > 0
    total = len(scores) * spread + NAME_ROWS * spread[named].mean()
    unit = np.where(named, 1 / np.sqrt(total / (len(scores) + NAME_ROWS)), 0)
    best, least = None, _calibrated_loss(plain, labels, observed) - NAME_GAIN
    for weight in NAME_WEIGHTS:
        moved = weight * unit[:, None] * towards
        middle = weight * unit * scores.mean(0)
        found = fit(features, labels, observed, offset=features @ moved.T - middle, **how)
        value = _calibrated_loss(found, labels, observed)
        if value < least:
            least = value
            best = replace(found, weight=found.weight + moved, bias=found.bias - middle)
    return best


def _calibrated_loss(fitted: Fitted[Any], labels: Values, observed: Mask | None) -> float:
    """Return the log loss, in nats, of calibrated out-of-fold probabilities."""
    log_p, log_q = fitted.link.log_probs(fitted.out_of_fold.astype(np.float64))
    loss = -(labels * log_p + (1 - labels) * log_q)
    return float((loss if observed is None else np.where(observed, loss, 0)).sum())


def fit(
    features: A,
    labels: Values,
    observed: Mask | None = None,
    *,
    loss: ConvexLoss[A] | None = None,
    offset: Numbers | None = None,
    link: Link | None = None,
    parts: Sequence[tuple[int, float]] = (),
    groups: NDArray[Any] | None = None,
    seed: int = 0,
    tried: Callable[[float, float], None] = lambda _strength, _loss: None,
) -> Fitted[A]:
    """Return the cross-fitted linear classifier of features (N, D) and labels (N, K).

    ``loss`` is what training minimises (default: cross-entropy of the known labels) and ``link``
    its own map to probabilities. ``offset`` (N, K) is a part of the logits that is known; the
    classifier is what is added to it. ``parts`` are the width and the weight of each group of
    features, by default one. ``groups`` (N,) names rows that stay in one fold. ``tried`` is told
    each strength and its out-of-fold loss per row.
    """
    units = len(labels) if groups is None else len(np.unique(np.asarray(groups)))
    if units < 2:
        what = "labelled row" if groups is None else "group of labelled rows"
        raise DataError(
            f"the head is chosen on rows that it was not trained on, which takes two, and there is "
            f"{units} {what}; label more photos"
        )
    link, targets = link or Sigmoid(), _Targets.of(labels, observed, offset)
    count = min(units, FOLDS_OF_FEW if len(labels) < FEW else FOLDS)
    folds = deal_folds(targets.labels * targets.known, count, groups=groups, seed=seed)
    design = Design.of(features, parts=parts)
    if loss is None:
        loss = CoinLoss.of(like(labels, design.rows), None if observed is None else observed)  # type: ignore[arg-type]
    if offset is not None and isinstance(loss, CoinLoss):
        loss = replace(loss, offset=like(offset, design.rows))
    path = _Path(design.rough(), loss, link, targets, folds, tried)
    powers = path.chosen()
    solved = path.solved(powers, path.nearest(powers), FINE)
    out_of_fold = path.logits(solved) + targets.offset
    everyone = _Path(design.rough(), loss, link, targets, np.full(len(labels), -1), tried)
    start = everyone.solved(powers, solved.mean(0)[None], FINE)
    fewer = []
    if count == FOLDS and not loss.joint and targets.labels.size * FOLDS <= MOST_OF_CURVE:
        fewer = [replace(path, parts=parts).at_best(powers, solved) for parts in (1, 2)]
    exact = _Path(design, loss, link, targets, np.full(len(labels), -1), tried)
    weight, bias = design.linear(exact.solved(powers, like(start, design.rows), None)[0])
    notes = []
    if loss.joint:
        logits = like(out_of_fold, design.rows)
        slope = _slope(loss.to(logits), logits)
        weight, bias, out_of_fold = slope * weight, slope * bias, slope * out_of_fold
        calibrated: Link = link
    elif targets.can_calibrate:
        calibrated = shrunken(out_of_fold, labels, link, observed)
    else:
        calibrated = link
        notes.append(
            "Every known label is the same, present or absent, so the probabilities could not be "
            "calibrated."
        )
    return Fitted(
        weight.T,
        bias,
        calibrated,
        out_of_fold.astype(np.float32),
        folds,
        10**powers,
        link,
        tuple(notes),
        fewer=tuple(fewer),
    )


def _slope(loss: ConvexLoss[A], logits: A) -> float:
    """Return the inverse temperature of the least loss, shrunk to 1 with deviation .3.

    Newton on a -> loss(a v) + (a - 1)^2 / (2 .3^2), which is convex.
    """
    precision, slope = float(SHARED[0]), 1.0
    for _ in range(TEMPERATURE_STEPS):
        at = loss.derivatives(slope * logits)
        first = float((at.gradient * logits).sum()) + precision * (slope - 1)
        second = float((at.times(logits) * logits).sum()) + precision
        step = min(max(first / second, slope - 2), slope / 2)  # at most halved or doubled at once
        slope -= step
        if abs(step) < 1e-9:
            break
    return slope


@dataclass(frozen=True, eq=False)
class _Targets:
    """What is known of the rows, in float64: labels (N, K) in [0, 1], known entries 0 and 1."""

    labels: Numbers
    known: Numbers
    offset: Numbers | float = 0.0  # of the logits, (N, K)

    @staticmethod
    def of(labels: Values, observed: Mask | None, offset: Numbers | None = None) -> "_Targets":
        y = labels.astype(np.float64)
        known = np.ones(y.shape) if observed is None else observed.astype(np.float64)
        return _Targets(np.where(known > 0, y, 0.0), known, 0.0 if offset is None else offset)

    @property
    def can_calibrate(self) -> bool:
        present = float(self.labels.sum())
        return 0 < present < float(self.known.sum())


@dataclass(frozen=True, eq=False)
class _Path(Generic[A]):
    """The strengths that were tried, their rough optima for all folds, and their losses.

    A fold of -1 for all rows stands for one head of all rows. With ``parts`` a head is trained on
    so many of the folds that follow its own, instead of all others.
    """

    design: Design[A]
    loss: ConvexLoss[A]
    link: Link
    targets: _Targets
    folds: NDArray[np.int64]
    tried: Callable[[float, float], None]
    parts: int = 0
    found: dict[float, A] = field(default_factory=dict)  # (F, r + 1, K), by power of ten
    raw: dict[float, Numbers] = field(default_factory=dict)  # out-of-fold losses, (K,) or (1,)
    calibrated: dict[float, Numbers] = field(default_factory=dict)  # after a shared Platt

    @property
    def numbers(self) -> list[int]:
        return [-1] if self.folds[0] < 0 else list(range(int(self.folds.max()) + 1))

    @property
    def seen(self) -> list[Mask]:
        """The rows (N,) that train each head."""
        if self.parts:
            count = len(self.numbers)
            after = [(self.folds - number) % count for number in self.numbers]
            return [(place > 0) & (place <= self.parts) for place in after]
        return [(self.folds != number) | (number < 0) for number in self.numbers]

    def _portions(self) -> Iterator[tuple[slice, ConvexLoss[A]]]:
        """Yield columns and the loss of their labels, with so many logits at once."""
        labels, heads = self.loss.num_labels, len(self.numbers)
        step = max(1, AT_ONCE // (heads * len(self.folds)))
        if self.loss.joint or labels <= step:
            yield slice(None), self.loss.to(self.design.rows)
            return
        for start in range(0, labels, step):
            some = slice(start, min(start + step, labels))
            yield some, self.loss.columns(some).to(self.design.rows)

    def solved(self, powers: Numbers, start: A, tolerance: float | None) -> A:
        """Return the optima (F, r + 1, K) of all folds for strengths 10^powers (K,) per row."""
        xp, rows = namespace(start), self.design.rows
        out = xp.asarray(start, copy=True)
        exact = {} if tolerance is None else {"tolerance": tolerance}
        for columns, loss in self._portions():
            losses = [loss.of_rows(like(mask, rows)).bounded() for mask in self.seen]
            strengths = [10 ** powers[None, columns] * mask.sum() for mask in self.seen]
            if loss.joint:
                for fold, (part, l2) in enumerate(zip(losses, strengths, strict=True)):
                    out[fold] = minimise(self.design, part, like(l2, rows), out[fold], **exact)
                continue
            joined = ConvexLoss.joined(losses, lambda parts: xp.concat(parts, axis=1))
            begin = xp.permute_dims(start[:, :, columns], (1, 0, 2)).reshape(len(rows.T), -1)
            l2 = like(np.concatenate(strengths, axis=1), rows)
            found = minimise(self.design, joined, l2, begin, **exact)
            heads = found.reshape(len(rows.T), len(losses), -1)
            out[:, :, columns] = xp.permute_dims(heads, (1, 0, 2))
        solved: A = out
        return solved

    def logits(self, heads: A) -> Numbers:
        """Return the logits (N, K) of each row by the head that did not see it."""
        out = np.zeros(self.targets.labels.shape)
        for number, head in zip(self.numbers, heads, strict=True):
            held = np.flatnonzero(self.folds == number)
            out[held] = to_numpy(self.design.rows[held] @ head)
        return out

    def at_best(self, powers: Numbers, start: A) -> NDArray[np.float32]:
        """Return the logits (N, K) of the least loss after a shared Platt, by rough optima."""
        best: tuple[float, Numbers] | None = None
        labels, known = self.targets.labels, self.targets.known
        for more in STRONGER:
            start = self.solved(powers + more, start, ROUGH)
            logits = self.logits(start) + self.targets.offset
            slope, offset = shared_line(self.link.log_odds(logits), labels, known)
            odds = slope * self.link.log_odds(logits) + offset
            loss = float(CoinLoss.of(labels, known > 0).sums(odds).sum())
            if best is not None and loss > best[0]:
                break
            best = loss, logits
        if best is None:
            raise AssertionError("no strength was tried")
        return best[1].astype(np.float32)

    def attempt(self, power: float) -> None:
        """Solve all folds at a strength, and keep what the rows left out say of it."""
        if power in self.found:
            return
        rows = self.design.rows
        stronger = [other for other in self.found if other > power] or list(self.found)
        if stronger:
            start = self.found[min(stronger, key=lambda other: abs(other - power))]
        else:
            xp, loss = namespace(rows), self.loss.to(rows)
            priors = [loss.of_rows(like(mask, rows)).bounded().prior() for mask in self.seen]
            shape = len(priors), rows.shape[1], loss.num_labels
            start = xp.zeros(shape, dtype=rows.dtype, device=rows.device)
            start[:, -1] = xp.stack(priors)
        powers = np.full(self.loss.num_labels, power)
        self.found[power] = self.solved(powers, start, ROUGH)
        odds = self.logits(self.found[power])
        logits = like(odds, self.design.mean)
        loss = self.loss.to(logits)
        self.raw[power] = self.calibrated[power] = to_numpy(loss.sums(logits))[0]
        if loss.joint:
            self.calibrated[power] = to_numpy(loss.sums(_slope(loss, logits) * logits))[0]
        elif self.targets.can_calibrate:
            labels, known = self.targets.labels, self.targets.known
            odds = self.link.log_odds(odds + self.targets.offset)
            slope, offset = shared_line(odds, labels, known)
            self.calibrated[power] = CoinLoss.of(labels, known > 0).sums(slope * odds + offset)[0]
        self.tried(10**power, float(self.raw[power].sum()) / len(self.folds))

    def chosen(self) -> Numbers:
        """Return the power of ten (K,) of each label's strength."""
        power = FIRST
        while power >= WEAKEST:
            self.attempt(power)
            falls = power == FIRST or self.raw[power].sum() <= NO_LESS * self.raw[power + 1].sum()
            if not falls and power < 0:
                break
            power -= 1
        choices = [self._each(losses) for losses in (self.raw, self.calibrated)]
        return max(choices, key=lambda powers: float(powers.mean()))

    def _each(self, losses: dict[float, Numbers]) -> Numbers:
        """Return the power of ten (K,) of each label's strength by some losses."""

        def total(power: float) -> float:
            return float(losses[power].sum()) + ((power - USUAL) / USUAL_ERROR) ** 2 / 2

        while True:
            best = min(losses, key=total)
            beside = [best + way for way in (-STEP, STEP) if WEAKEST <= best + way <= STRONGEST]
            missing = [power for power in beside if power not in losses]
            if not missing:
                break
            for power in missing:
                self.attempt(power)
        common = best
        if len(beside) == 2:
            left, middle, right = (total(power) for power in (beside[0], best, beside[1]))
            bend = left - 2 * middle + right
            if bend > 0:  # the bottom of the parabola through these
                common = best + STEP / 2 * (left - right) / bend
        if self.loss.joint:
            return np.full(self.loss.num_labels, common)
        powers = np.array(sorted(losses))
        between = np.pad(np.diff(powers), 1)
        share = (between[1:] + between[:-1])[:, None]  # of the powers that a tried one stands for
        prior = np.log(share) - ((powers[:, None] - common) / APART) ** 2 / 2
        joint = prior - np.stack([losses[power] for power in powers.tolist()])
        posterior = np.exp(joint - joint.max(0))
        mean: Numbers = (posterior * powers[:, None]).sum(0) / posterior.sum(0)
        return mean

    def nearest(self, powers: Numbers) -> A:
        """Return the rough optima (F, r + 1, K) of the tried strength nearest to each label's."""
        there = np.array(sorted(self.found))
        which = np.abs(powers[:, None] - there).argmin(1)
        xp = namespace(self.design.rows)
        columns = [self.found[float(there[i])][:, :, k] for k, i in enumerate(which.tolist())]
        return xp.stack(columns, axis=2)  # type: ignore[no-any-return]
