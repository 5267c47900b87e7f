"""Which tags photos get: of a model's rule, of one with a guarantee, or those an audit kept."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from labelwise.answers.audit_outcome import KEPT, RECEIPT, read_receipt
from labelwise.data import load
from labelwise.data.rows import is_file
from labelwise.decide import Promised, Rule, promise_precision, promise_tags
from labelwise.errors import DataError
from labelwise.photos.index import Index
from labelwise.photos.metadata import names_beside
from labelwise.photos.shift import evidence_of, likeness_of
from labelwise.photos.xmp import (
    Keyword,
)
from labelwise.pictures.decode import IMAGE_SUFFIXES, RAW_SUFFIXES

ROWS_AT_ONCE = 4096


def promised_rule(
    index: Index, wrong_at_most: float, confidence: float, *, per_label: bool = False
) -> Promised:
    """Return the rule by which at most this share of the tags is wrong, and what it promises.

    Of all tags together, which the most common label may decide; or of each label's, where labels
    that cannot be promised are not given, and those with few photos have one promise together.
    Held-out photos tell nothing of a library that differs, or that could not be compared.
    """
    evidence, tuning, likeness = evidence_of(index), index.tuning(), likeness_of(index)
    outcome, own = likeness.likeness.outcome, index.spec.answers is not None
    if outcome != "alike" and not (own and outcome == "unknown"):  # own photos were set aside
        raise DataError(
            f"no tag of {index.folder} can be guaranteed from test photos. {likeness.sentence()} "
            "Leave out --wrong-at-most, then check the tags: labelwise audit TAGS"
        )
    level = 1 - wrong_at_most
    if per_label:
        made = promise_precision(
            evidence, level=level, confidence=confidence, tuning=tuning, scope="label"
        )
    else:
        made = promise_tags(evidence, level=level, confidence=confidence, tuning=tuning)
    if not made.promises:
        raise DataError("; ".join(made.refused))
    return made


def tags_of(index: Index, rule: Rule | None) -> Iterator[tuple[int, list[Keyword]]]:
    """Yield, for each photo that is there, its labels, surest first."""
    model = index.spec.weights_sha256[:12]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    # Once there are answers, a word without any is never chosen: no tag needs a caution.
    caution = index.spec.caution if index.spec.answers == 0 else None
    dead = set(index.store.dead_rows().tolist())
    for start in range(0, len(index), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(index)))
        probs, sets = np.exp(index.log_probs(rows, refit=rule is None)), index.sets(rows, rule)
        for row, chances, chosen in zip(rows.tolist(), probs, sets, strict=True):
            if row not in dead:
                order = sorted(np.flatnonzero(chosen).tolist(), key=lambda k: -chances[k])
                names = [index.space.names[k] for k in order]
                yield (
                    row,
                    [
                        Keyword(name, chances[k], model, date, _above(index, name), caution)
                        for k, name in zip(order, names, strict=True)
                    ],
                )


def tags_of_audit(folder: Path) -> list[tuple[list[str], list[Keyword]]]:
    """Return the tags that an audit kept, for each of its photos that is there."""
    facts, table = read_receipt(folder / RECEIPT), load(folder / KEPT, check_files=False)
    level, date = facts["right_at_least"], datetime.now(UTC).isoformat(timespec="seconds")
    made, found = f"audit {facts['table'][:12]}", []
    said = f"at least {100 * level:.3g} % of the audited tags are right"
    for row in range(len(table)):
        photo = table.images.address(row)
        if not photo or Path(photo).suffix.lower() not in IMAGE_SUFFIXES:
            continue
        if is_file(Path(photo)):
            names = [table.space.names[k] for k in table.present.row(row).tolist()]
            own = [Keyword(name, level, made, date, (), said) for name in names]
            found.append(([photo], own))
    return found


def _above(index: Index, label: str) -> tuple[str, ...]:
    """Return what a label is a kind of, from the top down."""
    return () if index.taxonomy is None else index.taxonomy.above(label)


def raw_partners(photo: str) -> list[str]:
    """Return the raw files that a camera wrote together with a photo, under the same name."""
    folder, name = os.path.split(photo)
    stem = os.path.splitext(name)[0]
    if os.path.splitext(name)[1].lower() in RAW_SUFFIXES:
        return []
    return [
        os.path.join(folder, name)
        for name in names_beside(photo)
        if os.path.splitext(name)[0] == stem and os.path.splitext(name)[1].lower() in RAW_SUFFIXES
    ]
