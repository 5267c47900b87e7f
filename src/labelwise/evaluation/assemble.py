"""evaluate: every part that applies to a table of predictions, put together.

Ranking needs only scores. Calibration, zero-label and retrieval need probabilities, so a link; a
model that only ranks and has no calibrator gets none, and the evaluation says so. Sets need a
rule. Figures "after" come from the calibrated probabilities, and so do sets and what follows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import Rule
from labelwise.errors import require
from labelwise.evaluation.calibration import (
    Known,
    Probabilities,
    defined,
    known_labels,
    probabilities,
)
from labelwise.evaluation.evaluation import (
    Evaluation,
    LabelRow,
    LevelFigures,
    RetrievalPoint,
    ShotGroup,
)
from labelwise.evaluation.intervals import RowIntervals, groups_note, mean_influence
from labelwise.evaluation.mergeable import EvaluationSums
from labelwise.evaluation.subgroups import (
    Subgroups,
    clash_note,
    exclusive_rows,
    label_curves,
    settled_labels,
    subgroup_rows,
)
from labelwise.links import Link
from labelwise.metrics import Averaged, average_precision, by_shot, log_loss_from_logs, reliability
from labelwise.numeric.arrays import Array, to_numpy
from labelwise.numeric.special import entr
from labelwise.predictions import Predictions
from labelwise.retrieval import retrieval_map
from labelwise.system.text import counted
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
    bins: int = 10,
    k: int = 4,
    query_length: int = 3,
    seed: int = 0,
    taxonomy: Taxonomy | None = None,
    attributes: AttributeGroups | AttributeColumns | None = None,
    by: Sequence[Subgroups] = (),
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
        rule = to_numpy(rule)
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
    links: Sequence[Link | NDArray[Any] | None],
) -> AttributeColumns | None:
    """Return the groups of labels that exclude each other: as given, or as a link obeys them."""
    if isinstance(given, AttributeGroups):
        return given.within(LabelSpace(tuple(names)))
    exclusives = (link.exclusive for link in links if isinstance(link, Link))
    return given or next((group for group in exclusives if group is not None), None)


def _consistent(
    logits: NDArray[Any], source: Link | NDArray[Any] | None, tree: LabelTree
) -> tuple[NDArray[Any] | None, str]:
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
    rule: Rule | NDArray[Any] | None, answers: Probabilities | None, tree: LabelTree | None
) -> NDArray[Any] | None:
    """Return the sets (N, K) that a rule decides or that are given, with all their parents."""
    if isinstance(rule, Rule):
        rule = None if answers is None else rule(answers.probs)
    return rule if tree is None or rule is None else tree.closed(rule)


def _figures(rows: Sequence[LabelRow], name: str) -> NDArray[np.float64]:
    """Return one figure (K,) of all labels, NaN where it is undefined."""
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


def _words(calibrated: Link | NDArray[Any] | None, words: str | None) -> str | None:
    if words is not None or calibrated is None:
        return words
    return describe_link(calibrated) if isinstance(calibrated, Link) else "log-odds as given"


def _retrieval(
    answers: Probabilities, known: Known, longest: int, seed: int
) -> tuple[tuple[RetrievalPoint, ...], str]:
    # Every query costs a pass over the images, so each length has a budget of image-query pairs.
    allowed = min(max(BUDGET // len(known.present), FEWEST), MOST)
    given = answers.log_p, answers.log_q, known.present, known.observed
    budget = {"longest": longest, "exhaustive": allowed, "sample": allowed, "seed": seed}
    points = tuple(
        RetrievalPoint(
            result.length,
            defined(result.value),
            None if result.exhaustive else defined(result.error),
            *(result.queries, result.skipped, not result.exhaustive),
        )
        for result in retrieval_map(*given, **budget)
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


def _lone_note(by: Subgroups) -> str:
    """Return which subgroups are single photos: nothing is known of their error."""
    alone = [name for name, rows in by.parts() if len(rows) == 1]
    if not alone:
        return ""
    some = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
    return (
        f"{counted(len(alone), 'subgroup')} by {by.by} with one photo each ({some}): their figures "
        "have no interval and are compared with nothing."
    )
