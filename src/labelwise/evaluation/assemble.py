"""evaluate: every part that applies to a table of predictions, put together.

Ranking needs only scores. Calibration, zero-label and retrieval need probabilities, so a link; a
model that only ranks and has no calibrator gets none, and the evaluation says so. Sets need a
rule. Figures "after" come from the calibrated probabilities, and so do sets and what follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log, sqrt
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Floats, Mask, Numbers, Values, as_mask, to_numpy
from labelwise.base.bounds import clopper_pearson, wilson
from labelwise.base.groups import Groups
from labelwise.base.special import entr, stdtr
from labelwise.base.text import counted
from labelwise.decide import Rule
from labelwise.errors import require
from labelwise.evaluation.calibration import (
    OF_LABEL,
    Known,
    Probabilities,
    curve_of,
    defined,
    known_labels,
    probabilities,
)
from labelwise.evaluation.cause import TrainingRows
from labelwise.evaluation.evaluation import (
    Evaluation,
    ExclusiveRow,
    LabelCurves,
    LabelRow,
    LevelFigures,
    RetrievalPoint,
    ShotGroup,
    SubgroupFigure,
    SubgroupRow,
)
from labelwise.evaluation.intervals import (
    Ends,
    RowIntervals,
    groups_note,
    mean_influence,
    mean_interval_by_group,
    row_sums,
    student_reach,
)
from labelwise.evaluation.judge import judge
from labelwise.evaluation.mergeable import EvaluationSums
from labelwise.links import Link
from labelwise.metrics import Averaged, average_precision, by_shot, log_loss_from_logs, reliability
from labelwise.predictions import Predictions
from labelwise.queries import retrieval_map
from labelwise.taxonomy import AttributeColumns, AttributeGroups, LabelTree, Taxonomy
from labelwise.types import LabelSpace

BUDGET = 20_000_000  # images times queries, per length
FEWEST, MOST = 200, 20_000
SHOTS = {"few": "few (under 20)", "medium": "medium (20 to 100)", "many": "many (over 100)"}


def evaluate(
    predictions: Predictions,
    link: Link | None,
    rule: Rule | Array | None = None,
    *,
    calibrated: Link | Array | None = None,
    calibrator: str | None = None,
    rule_words: str | None = None,
    thresholds: Rule | None = None,
    train_counts: Sequence[int] | None = None,
    training: TrainingRows | None = None,
    copies: Mask | None = None,
    bins: int = 10,
    k: int = 4,
    query_length: int = 3,
    seed: int = 0,
    taxonomy: Taxonomy | None = None,
    attributes: AttributeGroups | AttributeColumns | None = None,
    by: "Sequence[Subgroups]" = (),
    curves: bool = False,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Return everything that can be measured on ``predictions``.

    Args:
        predictions: Logits and labels of one split, not the one the link or rule was fitted on.
        link: The model's own link, ``None`` if its logits only rank.
        rule: What turns probabilities into sets, or the sets (N, K) themselves.
        calibrated: The link a calibrator returned, or log-odds (N, K) made fold by fold.
        calibrator: The calibrator in words.
        rule_words: The rule in words.
        thresholds: The rule whose thresholds are shown beside the labels, where ``rule`` is sets.
        train_counts: How many training images have each label, for few/medium/many-shot.
        training: What is known of the photos that fitted the model: it tells what would help most.
        copies: Which photos (N,) are copies of training photos: the verdict is also given without.
        bins: Bins of the reliability curves.
        k: How many of the surest labels of an image the top-k curve takes.
        query_length: Retrieval is measured for queries up to this many labels; 0 for none.
        seed: For sampled queries.
        taxonomy: Which label is a kind of which: labels and answers are made to obey it, and
            figures are given by level.
        attributes: Labels that exclude each other, those of the link unless given: figures are
            given by group, and labels that break its rule are counted and taken as unknown.
        by: Subgroups of the photos, such as their sites, to give figures of; curves are drawn for
            those of the first.
        curves: Keep ROC, precision-recall and reliability curves of the labels ranked worst.
        notes: What a reader should keep in mind.
    """
    if rule is not None and not isinstance(rule, Rule):
        rule = as_mask(to_numpy(rule), "rule")
    if calibrated is not None and not isinstance(calibrated, Link):
        calibrated = to_numpy(calibrated)
    for each in by:
        require(
            len(each.values) == len(predictions),
            f"{each.by} must name a subgroup of {len(predictions)} photos, got {len(each.values)}",
        )
    tree = None if taxonomy is None else taxonomy.within(LabelSpace(predictions.names))
    if tree is not None:
        predictions, completed = _completed(predictions, tree)
        best = calibrated if calibrated is not None else link
        odds, sentence = _consistent(predictions.logits, best, tree)
        notes = (*notes, *completed)
        if odds is not None:
            calibrator = f"{_words(calibrated, calibrator) or 'own probabilities'}, made consistent"
            calibrated, notes = odds, (*notes, sentence)
    exclusive = _exclusive(attributes, predictions.names, (calibrated, link))
    clashes: list[int] = []
    if exclusive is not None:
        predictions, clashes = settled_labels(predictions, exclusive)
    known, names, logits = known_labels(predictions), predictions.names, predictions.logits
    k = min(k, len(names))
    answers = [
        probabilities(stage, logits, source)
        for stage, source in (("before", link), ("after", calibrated))
        if source is not None
    ]
    final = answers[-1] if answers else None
    if isinstance(rule, Rule):
        thresholds, rule_words = rule, rule_words or str(rule)
    sets = _sets(rule, final, tree)
    by_image = average_precision(logits, known.present, known.observed, by="image")
    precision = average_precision(logits, known.present, known.observed)
    every = max(len(logits), 2)  # cells: each score in its own
    sums = EvaluationSums.of(known, by_image, answers, sets, bins=bins, k=k, limit=every)
    intervals = RowIntervals(logits, known, by_image, final, sets)
    words, exact = rule_words or "sets as given", np.zeros(len(names))
    evaluation = sums.assembled(
        names, precision, exact, intervals, k=k, rule=thresholds, rule_words=words
    )
    retrieval: tuple[RetrievalPoint, ...] = ()
    retrieval_how = ""
    if final is not None and query_length:
        retrieval, retrieval_how = _retrieval(final, known, query_length, seed)
    groups, influence = known.groups, None
    if final is not None and groups is not None:
        influence = mean_influence(intervals.row_sums[0], intervals.row_sums[2])
    count = None if groups is None else groups.count
    return replace(
        evaluation,
        data=replace(evaluation.data, split=predictions.split or None, groups=count),
        link=None if link is None else describe_link(link),
        calibrator=_words(calibrated, calibrator),
        retrieval=retrieval,
        retrieval_how=retrieval_how,
        shots=() if train_counts is None else _shots(evaluation.rows, train_counts),
        levels=() if tree is None else _levels(tree, evaluation.rows, known, final, bins),
        exclusive=exclusive_rows(exclusive, names, known, sets, clashes) if exclusive else (),
        curves=label_curves(logits, known, names, final, next(iter(by), None), bins=bins)
        if curves
        else (),
        subgroups=tuple(row for each in by for row in subgroup_rows(each, known, final, sets)),
        judgement=judge(
            logits, known, None if final is None else final.probs, sets, names, training, copies
        ),
        notes=(
            *notes,
            *filter(None, map(_lone_note, by)),
            *(() if answers else ("The scores only rank: there are no probabilities to judge.",)),
            *filter(None, (clash_note(sum(clashes)), _soft_note(known))),
            *groups_note(groups, influence),
            *(() if evaluation.sets is None else evaluation.sets.size_note()),
        ),
    )


def _completed(predictions: Predictions, tree: LabelTree) -> tuple[Predictions, tuple[str, ...]]:
    """Return predictions whose labels obey the tree, and what was changed."""
    labels, observed = tree.complete(predictions.labels, predictions.observed)
    masks = predictions.observed, observed
    before, after = (np.ones(labels.shape, bool) if mask is None else mask for mask in masks)
    changed = int((before & (labels != predictions.labels)).sum())
    learned = int((after & ~before).sum())
    sentence = (
        f"By the taxonomy {changed:,} labels were raised, since a kind of them is there, and "
        f"{learned:,} unknown ones are known."
    )
    completed = replace(predictions, labels=labels, observed=observed)
    return completed, (sentence,) if changed or learned else ()


def _exclusive(
    given: AttributeGroups | AttributeColumns | None,
    names: Sequence[str],
    links: Sequence[Link | Values | None],
) -> AttributeColumns | None:
    if isinstance(given, AttributeGroups):
        return given.within(LabelSpace(tuple(names)))
    exclusives = (link.exclusive for link in links if isinstance(link, Link))
    return given or next((group for group in exclusives if group is not None), None)


def _consistent(
    logits: Floats, source: Link | Values | None, tree: LabelTree
) -> tuple[Numbers | None, str]:
    """Return log-odds that obey the tree and how many images needed that; None if none did."""
    if source is None:
        return None, ""
    answers = probabilities("after", logits, source)
    given = (answers.log_p - answers.log_q).astype(np.float64)
    wrong = int(tree.violations(given).sum())
    if not wrong:
        return None, ""
    return tree.consistent(given), (
        f"Of {wrong:,} of {len(logits):,} images a label was likelier than what it is a kind of; "
        "probabilities are the nearest ones (least KL divergence) that obey the taxonomy."
    )


def _sets(
    rule: Rule | Mask | None, answers: Probabilities | None, tree: LabelTree | None
) -> Mask | None:
    if isinstance(rule, Rule):
        rule = None if answers is None else rule(answers.probs)
    return rule if tree is None or rule is None else tree.closed(rule)


def _figures(rows: Sequence[LabelRow], name: str) -> Numbers:
    return np.array([getattr(row, name) for row in rows], np.float64)


def _shots(rows: Sequence[LabelRow], train_counts: Sequence[int]) -> tuple[ShotGroup, ...]:
    numbers = np.asarray(train_counts)
    ap, recall = (by_shot(_figures(rows, name), numbers) for name in ("ap", "recall"))
    groups = ((words, ap[shot], recall[shot]) for shot, words in SHOTS.items())
    return tuple(
        ShotGroup(words, len(own.items), own.num_defined, defined(own.value), defined(found.value))
        for words, own, found in groups
    )


def _levels(
    tree: LabelTree,
    rows: Sequence[LabelRow],
    known: Known,
    answers: Probabilities | None,
    bins: int,
) -> tuple[LevelFigures, ...]:
    levels = []
    for level, columns in tree.levels().items():
        observed = None if known.observed is None else known.observed[:, columns]
        labels, loss, ece = known.labels[:, columns], None, None
        if answers is not None:
            logs = answers.log_p[:, columns], answers.log_q[:, columns]
            loss = defined(log_loss_from_logs(*logs, labels, observed).value)
            ece = defined(reliability(answers.probs[:, columns], labels, observed, bins=bins).ece())
        mean_ap, mean_f1 = (
            defined(Averaged.over(_figures(rows, name)[columns], "label").value)
            for name in ("ap", "f1")
        )
        present = int(known.present[:, columns].sum())
        levels.append(LevelFigures(level, len(columns), present, mean_ap, loss, ece, mean_f1))
    return tuple(levels)


def describe_link(link: Link) -> str:
    """Return the kind of a link and of the links inside it.

    >>> from labelwise.links import Sigmoid
    >>> describe_link(Sigmoid())
    'sigmoid'
    """
    inner = (describe_link(value) for value in link.spec().values() if isinstance(value, Link))
    return " of ".join([link.kind, *inner])


def _words(calibrated: Link | Values | None, words: str | None) -> str | None:
    if words is not None or calibrated is None:
        return words
    return describe_link(calibrated) if isinstance(calibrated, Link) else "log-odds as given"


def _retrieval(
    answers: Probabilities, known: Known, longest: int, seed: int
) -> tuple[tuple[RetrievalPoint, ...], str]:
    # Every query costs a pass over the images, so each length has a budget of image-query pairs.
    allowed = min(max(BUDGET // len(known.present), FEWEST), MOST)
    given = answers.log_p, answers.log_q, known.present, known.observed
    results = retrieval_map(*given, longest=longest, exhaustive=allowed, sample=allowed, seed=seed)
    points = tuple(
        RetrievalPoint(
            result.length,
            defined(result.value),
            None if result.exhaustive else defined(result.error),
            *(result.queries, result.skipped, not result.exhaustive),
        )
        for result in results
    )
    how = (
        "A query wants some labels and not others; its images are ranked by the joint probability, "
        "labels taken as independent given the image. Average precision with equal scores as one "
        "threshold; mean over the queries that some image answers. "
        f"Up to {allowed:,} queries per length: all, or a seeded sample with its standard error."
    )
    return points, how


def _soft_note(known: Known) -> str:
    """Return what soft labels were used for, and the log loss that not even they can go below."""
    if known.shares is None:
        return ""
    soft = (known.shares > 0) & (known.shares < 1)
    shares = known.shares[soft if known.observed is None else soft & known.observed]
    shares = shares.astype(np.float64)
    entries = known.present.size if known.observed is None else int(known.observed.sum())
    entropy = float((entr(shares) + entr(1 - shares)).sum()) / entries
    return (
        f"{len(shares):,} of {entries:,} known labels are soft, shares between 0 and 1. Log loss, "
        "Brier score (squared distance to the share) and calibration are measured against the "
        "shares; ranking, sets, images without labels and retrieval take a label as present if its "
        "share is above one half. "
        f"Answering with the shares themselves would have a log loss of {entropy:.4f}."
    )


def _lone_note(by: "Subgroups") -> str:
    """Return which subgroups are single photos: nothing is known of their error."""
    alone = [name for name, rows in by.parts() if len(rows) == 1]
    if not alone:
        return ""
    some = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
    return (
        f"{counted(len(alone), 'subgroup')} by {by.by} with one photo each ({some}): their figures "
        "have no interval and are compared with nothing."
    )


# Of labels that exclude each other: photos whose set holds of the group what is there / photos with
# the group known, with Clopper and Pearson's interval, or the jackknife over groups of photos.


def settled_labels(
    predictions: Predictions, columns: AttributeColumns
) -> tuple[Predictions, list[int]]:
    """Return predictions whose labels obey the groups, and the clashes of each group."""
    if predictions.has_soft_labels():  # soft ones may share
        return predictions, [0] * len(columns.groups)
    clashes = []
    for group in columns.groups:
        predictions, settled = predictions.settled(columns.alone(group))
        clashes.append(int(settled.conflicts.sum()))
    return predictions, clashes


def clash_note(count: int) -> str:
    """Return what was done with labels that break a rule, if some do."""
    if not count:
        return ""
    return (
        f"{counted(count, 'photo')} with labels that exclude each other, or with none of a group "
        "that must have one: which is wrong nobody knows, so these labels are taken as unknown "
        "(labelwise data rules lists them)."
    )


def exclusive_rows(
    columns: AttributeColumns,
    names: Sequence[str],
    known: Known,
    sets: Mask | None,
    clashes: Sequence[int],
) -> tuple[ExclusiveRow, ...]:
    """Return the figures of each group; ``clashes`` are its photos with labels that break it."""
    rows, chosen = [], known.present if sets is None else sets
    for group, clashing in zip(columns.groups, clashes, strict=True):
        seen, same = columns.right_rows(group, chosen, known.present, known.observed)
        total, right = int(seen.sum()), int(same.sum())
        facts = tuple(names[column] for column in group), group in columns.exactly_one, total
        if sets is None:
            rows.append(ExclusiveRow(*facts, clashes=clashing))
            continue
        share: float | None = right / total if total else None
        ends: Ends = (None, None)
        if known.groups is not None:
            ends = mean_interval_by_group(share, same.astype(float), seen, known.groups, 1.0)
        elif total:
            ends = clopper_pearson(right, total, 0.975)
        broken = int(columns.broken(group, chosen).sum())
        rows.append(ExclusiveRow(*facts, clashing, right, share, *ends, broken))
    return tuple(rows)


# Subgroups: the same figures for each site, camera or sex, which of them differ, and curves.
#
# Each figure is a ratio of what photos add, R = sum a / sum b:
#
#     log loss      a the photo's loss                 b its known labels
#     wrong labels  a known labels decided wrong       b its known labels
#     recall        a present labels that were chosen  b its present labels
#     bias of p     a sum of p - y                     b its known labels
#
# A subgroup differs from the others if a score test says so: under the hypothesis that both have
# the ratio R of all photos, photo i moves the difference of the two ratios by
#
#     u_i = +- (a_i - R b_i) / (sum of b on its side)
#
# and  difference / sqrt(G / (G - 1) sum over groups of (sum of u within)^2)  follows Student's law
# with as many degrees of freedom as the side with fewer groups has, less one. p-values are
# corrected for all subgroups and figures together (Holm). A side of one group cannot be compared.


@dataclass(frozen=True, eq=False)
class Subgroups:
    """The subgroup (N,) of each photo by one column, such as its site."""

    by: str
    values: NDArray[np.str_]

    @classmethod
    def of(cls, by: str, values: Sequence[str] | NDArray[np.str_]) -> "Subgroups":
        return cls(by, np.asarray(list(values), dtype=str))

    def parts(self) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """Yield the name and the rows of each subgroup, in the order of their names."""
        names, codes = np.unique(self.values, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        ends = np.bincount(codes, minlength=len(names)).cumsum()
        yield from zip(names.tolist(), np.split(order, ends[:-1]), strict=True)

    def largest(self, most: int) -> list[tuple[str, NDArray[np.intp]]]:
        """Return at most so many subgroups, those with the most photos, in order of names."""
        parts = list(self.parts())
        return sorted(sorted(parts, key=lambda part: -len(part[1]))[:most], key=itemgetter(0))


def subgroup_rows(
    by: Subgroups, known: Known, final: Probabilities | None, sets: Mask | None
) -> tuple[SubgroupRow, ...]:
    """Return the figures of each subgroup, and how sure it is that each differs from the others."""
    ratios = _ratios(known, final, sets)
    groups = known.groups or Groups(np.arange(len(by.values)), len(by.values))
    parts = list(by.parts())
    tests = product(parts, ratios.values())
    corrected = iter(holm([ratio_difference(*ratio, part[1], groups) for part, ratio in tests]))
    rows_of = []
    for name, rows in parts:
        own = groups.take(rows)
        figures = []
        for what, (added, weight) in ratios.items():
            sums, counts = added[rows], weight[rows]
            value = float(sums.sum() / counts.sum()) if counts.sum() > 0 else None
            highest = 1.0 if what != LOG_LOSS_BY else float("inf")
            low, high = mean_interval_by_group(value, sums, counts, own, highest)
            if what == BIAS and value is not None:  # may be negative: that of the mean plus one
                low, high = mean_interval_by_group(value + 1, sums + counts, counts, own, 2.0)
                if low is not None and high is not None:
                    low, high = low - 1, high - 1
            figures.append(SubgroupFigure(what, value, low, high, next(corrected)))
        rows_of.append(SubgroupRow(by.by, name, len(rows), own.count, tuple(figures)))
    return tuple(rows_of)


LOG_LOSS_BY, WRONG, RECALL, BIAS = "log loss", "wrong labels", "recall", "bias of p"


def _ratios(
    known: Known, final: Probabilities | None, sets: Mask | None
) -> dict[str, tuple[Numbers, Numbers]]:
    """Return what each photo adds to the two sides of each figure."""
    ratios: dict[str, tuple[Numbers, Numbers]] = {}
    present = known.present
    seen = np.ones_like(present) if known.observed is None else known.observed
    if final is not None:
        loss, _, counts = row_sums(final, known)
        if np.isfinite(loss).all():
            ratios[LOG_LOSS_BY] = (loss, counts)
        off = np.where(seen, final.probs.astype(np.float64) - known.labels.astype(np.float64), 0.0)
        ratios[BIAS] = (off.sum(1), counts)
    if sets is not None:
        wrong = ((sets != present) & seen).sum(1).astype(np.float64)
        hits, truth = (side.sum(1).astype(np.float64) for side in (sets & present, present))
        ratios[WRONG], ratios[RECALL] = (wrong, seen.sum(1).astype(np.float64)), (hits, truth)
    return ratios


def ratio_difference(
    added: Numbers, counted: Numbers, rows: NDArray[np.intp], groups: Groups
) -> float | None:
    """Return the p-value of "these rows have the ratio of the others"; None if nobody can tell."""
    inside = np.zeros(len(added), bool)
    inside[rows] = True
    sides = [float(counted[side].sum()) for side in (inside, ~inside)]
    units = min(int(groups.counted(counted * side).sum()) for side in (inside, ~inside))
    if min(sides) == 0 or units < 2:
        return None
    ratio = added.sum() / counted.sum()
    moved = (added - ratio * counted) / np.where(inside, sides[0], -sides[1])
    difference = float(moved.sum())
    spread = float((groups.sums(moved) ** 2).sum()) * groups.count / (groups.count - 1)
    if spread == 0:
        return None
    return float(2 * stdtr(units - 1, -abs(difference) / sqrt(spread)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected so that any false alarm among them is as unlikely as one was.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    tests = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, number) in enumerate(tests):
        worst = max(worst, min(1.0, p * (len(tests) - rank)))
        adjusted[number] = worst
    return adjusted


# Curves of a label: ROC, precision and recall, reliability, of all photos and of each subgroup.
#
#     ROC   (absent photos at or above t / absent,  present ones at or above t / present)
#     PR    (present at or above t / present,       present at or above t / all at or above t)
#
# over every score t; equal scores are one point; at most 60 points are kept. With V the chance that
# a photo outscores one of the other side, and A its mean, the area's interval adds a quarter of a
# photo of V = 0 and one of V = 1 to each side of n photos (m on the smaller one), since DeLong's
# variance is far too small where few photos have the label:
#
#     A' = (m A + 1/4) / (m + 1/2)
#     variance = sum over sides of [sum (V - A')^2 + ((1 - A')^2 + A'^2) / 4] / (n (n + 1/2))
#     Wilson's interval of the share A of A' (1 - A') / variance photos
#
# Over groups of photos the variance is the sum of squares of what each group adds to
# U = (V - A) / photos of its side (Obuchowski, 1997), times G / (G - 1), on the log-odds scale.

LABELS = 24  # whose curves are kept, those of lowest average precision
LABELS_BY = 12  # whose curves are kept for each subgroup too
SUBGROUPS = 8  # the largest ones
POINTS = 60
ADDED = 0.25  # of a photo of either kind, to each side


def label_curves(
    scores: Floats,
    known: Known,
    names: Sequence[str],
    final: Probabilities | None,
    by: Subgroups | None,
    *,
    bins: int,
) -> tuple[LabelCurves, ...]:
    """Return the curves of the labels ranked worst, and of these by subgroup."""
    precision = average_precision(scores, known.present, known.observed).items
    order = [int(k) for k in np.argsort(precision, kind="stable") if not np.isnan(precision[k])]
    curves = []
    for position, k in enumerate(order[:LABELS]):
        parts = [("", np.arange(len(scores)))]
        if by is not None and position < LABELS_BY:
            parts += by.largest(SUBGROUPS)
        for name, chosen in parts:
            if known.observed is not None:
                chosen = chosen[known.observed[:, k][chosen]]
            score, present = scores[chosen, k], known.present[chosen, k]
            groups = known.groups.take(chosen) if known.groups and len(chosen) else None
            area, low, high = auroc_interval(score, present, groups) or (None, None, None)
            bins_of = mean = None
            if len(chosen):
                mean = defined(average_precision(score[:, None], present[:, None]).value)
            if final is not None and len(chosen):
                labels = known.labels[chosen, k : k + 1]
                counted = reliability(final.probs[chosen, k : k + 1], labels, bins=bins)
                bins_of = curve_of(counted, OF_LABEL)
            figures = names[k], name, len(chosen), int(present.sum()), area, low, high, mean
            curves.append(LabelCurves(*figures, *score_curve(score, present), bins_of))
    return tuple(curves)


def score_curve(
    scores: Floats, present: Mask
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """Return the points of the ROC curve and of the precision-recall curve, thinned."""
    order = np.argsort(-scores, kind="stable")
    score, hit = scores[order], present[order]
    last = np.flatnonzero(np.append(score[1:] != score[:-1], True)[: len(score)])
    hits = np.cumsum(hit)[last].astype(np.float64)
    alarms = np.asarray(last, np.float64) + 1 - hits
    positives, negatives = float(present.sum()), float((~present).sum())
    if not positives:
        return (), ()
    kept = hits > 0
    pr = _thinned(hits[kept] / positives, (hits / (hits + alarms))[kept])
    if not negatives:
        return (), pr
    return _thinned(np.append(0.0, alarms / negatives), np.append(0.0, hits / positives)), pr


def _thinned(x: Numbers, y: Numbers) -> tuple[tuple[float, float], ...]:
    """Return at most POINTS points, evenly spread along the line."""
    if len(x) > POINTS:
        length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
        wanted = np.linspace(0, length[-1], POINTS)
        kept = np.unique(np.minimum(np.searchsorted(length, wanted), len(x) - 1))
        x, y = x[kept], y[kept]
    return tuple(zip(x.tolist(), y.tolist(), strict=True))


def auroc_interval(
    scores: Floats, present: Mask, groups: Groups | None = None
) -> tuple[float, float | None, float | None] | None:
    """Return AUROC and its ends, None where unknown; None without both sides."""
    high, low = np.sort(scores[present]), np.sort(scores[~present])
    if not len(high) or not len(low):
        return None
    placed = np.empty(len(scores))
    for mine, others in ((present, low), (~present, high)):
        below = np.searchsorted(others, scores[mine], side="left")
        upto = np.searchsorted(others, scores[mine], side="right")
        placed[mine] = (below + upto) / 2 / len(others)
    placed[~present] = 1 - placed[~present]
    area = float(placed[present].mean())
    if groups is None:
        fewer = min(len(high), len(low))
        if fewer < 2:
            return area, None, None
        centre = (fewer * area + ADDED) / (fewer + 2 * ADDED)
        added = ADDED * ((1 - centre) ** 2 + centre**2)
        variance = sum(
            (float(((placed[side] - centre) ** 2).sum()) + added) / (n * (n + 2 * ADDED))
            for side, n in ((present, len(high)), (~present, len(low)))
        )
        return area, *wilson(area, centre * (1 - centre) / variance)
    units = min(int(groups.counted(side).sum()) for side in (present, ~present))
    if units < 2 or not 0 < area < 1:
        return area, None, None
    by_group = np.zeros(groups.count)
    for side in (present, ~present):  # as the area moves where a group is left out
        parts = groups.sums(side)
        by_group += groups.sums((placed - area) * side) / (parts.sum() - parts)
    variance = float(by_group @ by_group) * (groups.count - 1) / groups.count
    if variance == 0:
        return area, None, None
    half = student_reach(by_group, units - 1) * sqrt(variance) / (area * (1 - area))
    middle = log(area / (1 - area))
    ends = (min(max(odds, -700.0), 700.0) for odds in (middle - half, middle + half))
    lowest, highest = (1 / (1 + exp(-odds)) for odds in ends)
    return area, lowest, highest
