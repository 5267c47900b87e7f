"""Receipts of written tags: each promise that ``labelwise tag`` writes with, kept as lists' are.

What is promised of tags is a share of all (photo, label) pairs that thresholds choose, under the
model's own link and as if nobody had corrected a photo. So the receipt is named after the
thresholds, its photos are those with at least one such tag, and ``listed`` counts the tags:

    tags {"cat": 0.71, "dog": 0.55}

From these and the probabilities of the index its tags are known again, as long as model and link
are those of the receipt. Photos are the draw, not tags: those of one photo depend on each other. A
photo counts once everything that its tags say was answered; see
:mod:`labelwise.photos.verifying` for which answers count as drawn.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.decide import NEVER, AtMost, Promised, Rule, Threshold, check_promise
from labelwise.photos.index import Index
from labelwise.photos.receipts import (
    Receipt,
    keep_receipt,
    link_digest,
    receipts_of,
    rows_in_order,
    withdraw,
)

NAME = "tags "
NAMED = 3  # labels in a title
ROWS_AT_ONCE = 1 << 16

Known = Callable[[str], Mapping[int, bool]]  # whether photos carry a label, as far as people said


@dataclass(frozen=True)
class TagsVerdict:
    """Whether tags kept their promise, in a word and in a sentence."""

    verdict: Literal["kept", "broken", "cannot tell"]
    sentence: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.sentence}"


def is_of_tags(name: str) -> bool:
    """Return whether what a receipt is named after is tags, not a query."""
    return name.startswith(NAME + "{")


def labels_of_tags(name: str) -> list[str]:
    """Return the labels that tags of this name may have."""
    return list(_thresholds(name))


def tags_title(name: str) -> str:
    """Return in words what a receipt is of: tags of some labels, or a query as it is."""
    if not is_of_tags(name):
        return name
    labels = labels_of_tags(name)
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return f"tags of {', '.join(labels[:NAMED])}{more}"


def keep_tags(index: Index, made: Promised, who: str | None = None) -> list[Receipt]:
    """Keep a receipt of each promise that tags are written with; none in a read-only index."""
    receipts: list[Receipt] = []
    if not index.store.writable:
        return receipts
    for promise in made.promises:
        thresholds = _chosen(made.rule, index, promise.labels or index.space.names)
        alive = index.store.alive_rows()
        tags = _tags(index, thresholds, promise.at_most, alive).sum(axis=1)
        receipts.append(
            keep_receipt(
                index,
                NAME + json.dumps(thresholds),
                replace(promise, listed=int(tags.sum())),
                alive[tags > 0],
                who,
            )
        )
    return receipts


def withdraw_tags(index: Index, who: str | None = None) -> int:
    """Note that tags which were promised have been taken out again; return of how many receipts."""
    standing = [one for one in receipts_of(index) if is_of_tags(one.query) and not one.withdrawn]
    for one in standing:
        withdraw(index, one.number, who)
    return len(standing)


def tags_of_rows(
    index: Index, receipt: Receipt, rows: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return which of some rows have the tag of each label of a receipt."""
    thresholds = _thresholds(receipt.query)
    tags = _tags(index, thresholds, receipt.promise.at_most, rows)
    return {label: rows[tags[:, at]] for at, label in enumerate(thresholds)}


def judge_tags(index: Index, receipt: Receipt, known: Known) -> TagsVerdict:
    """Return whether the promise of tags is kept, as far as anybody can tell.

    ``known`` says of a label which photos carry it and which do not.
    """
    if (receipt.weights, receipt.link) != (index.spec.weights_sha256, link_digest(index)):
        return TagsVerdict(
            "cannot tell",
            "the model or its calibration has changed since, so its tags are not known any more",
        )
    thresholds = _thresholds(receipt.query)
    order = rows_in_order(index, receipt)
    sets = _tags(index, thresholds, receipt.promise.at_most, order)
    truth = np.zeros(sets.shape, np.float32)
    told = np.zeros(sets.shape, np.bool_)
    places = {row: at for at, row in enumerate(order.tolist())}
    for column, label in enumerate(thresholds):
        for row, right in known(label).items():
            if row in places:
                truth[places[row], column], told[places[row], column] = right, True
    whole = (told | ~sets).all(axis=1)
    drawn = len(order) if whole.all() else int(whole.argmin())
    if not drawn:
        return TagsVerdict(
            "cannot tell",
            "no photo of the first in its order has had all its tags answered; labelwise verify "
            "--ask writes which to answer",
        )
    check = check_promise(
        receipt.promise, sets[:drawn], truth[:drawn], told[:drawn], names=tuple(thresholds)
    )
    tags, wrong = int(sets[:drawn].sum()), int((sets[:drawn] & (truth[:drawn] < 0.5)).sum())
    return TagsVerdict(
        check.verdict,
        f"{wrong:,} of {tags:,} tags of {drawn:,} photos drawn are wrong; right are "
        f"{check.value:.1%} ({check.lower:.1%} to {check.upper:.1%}), "
        f"{receipt.promise.level:.1%} should be",
    )


def _thresholds(name: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(name.removeprefix(NAME))
    return found


def _chosen(rule: Rule, index: Index, labels: tuple[str, ...]) -> dict[str, float]:
    """Return the thresholds of the labels that a promised rule gives at all."""
    values = rule.thresholds(len(index.space))
    if values is None:
        raise TypeError(f"tags are promised by thresholds, got {type(rule).__name__}")
    every = {label: values[index.space.column(label)] for label in labels}
    return {label: value for label, value in every.items() if value < NEVER}


def _tags(
    index: Index, thresholds: Mapping[str, float], at_most: int | None, rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which of the labels (rows, labels) the model's own probabilities give photos."""
    # The most probable labels of a photo may be ones that are not given.
    compared = tuple(thresholds) if at_most is None else index.space.names
    rule: Rule = Threshold(tuple(thresholds.get(label, NEVER) for label in compared))
    if at_most is not None:
        rule = AtMost(rule, at_most)
    columns = [compared.index(label) for label in thresholds]
    odds = [index.odds(index.space.column(label), corrected=False) for label in compared]
    parts = [np.zeros((0, len(thresholds)), np.bool_)]
    for start in range(0, len(rows) if thresholds else 0, ROWS_AT_ONCE):
        some = rows[start : start + ROWS_AT_ONCE]
        probs = np.exp(np.stack([one.log_p.values[some] for one in odds], axis=1))
        parts.append(np.asarray(rule(probs))[:, columns])
    return np.concatenate(parts)
