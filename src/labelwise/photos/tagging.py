"""Side-car files beside photos: where they are, and writing or undoing our keywords in them.

Programs that find a side-car often look no further, so a new one takes over the XMP packet and the
other keywords inside the photo: nobody's keywords are hidden by ours.

Before a side-car is written, its bytes are kept in the index, and what is written into it. Undoing
puts exactly these bytes back, or removes a side-car that was not there before; where another
program has changed the file since, only entries that the index knows to be ours are taken out of
what it is now. A note in the file alone takes nothing out: anyone can write one.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeGuard

import numpy as np

from labelwise.answers.audit_outcome import KEPT, RECEIPT, read_receipt
from labelwise.data import load
from labelwise.data.rows import is_file
from labelwise.decide import Promised, Rule, promise_precision, promise_tags
from labelwise.errors import DataError, LabelwiseError
from labelwise.photos.embedded_tags import KeptSidecar, TagOutcome, written_sidecars
from labelwise.photos.index import Index
from labelwise.photos.metadata import names_beside, read_photo_metadata
from labelwise.photos.shift import evidence_of, likeness_of
from labelwise.photos.store import Store
from labelwise.photos.xmp import (
    LARGEST,
    NOTHING,
    Keyword,
    Written,
    begun,
    differ_in_dates_alone,
    entries,
    noted,
    tagged,
    untagged,
)
from labelwise.pictures.decode import IMAGE_SUFFIXES, RAW_SUFFIXES
from labelwise.system.files import read_regular, replacing

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
    """Yield, for each photo that is there, its labels, surest first.

    ``rule`` is one of :func:`promised_rule`; None for the model's own.
    """
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


def write_sidecar(
    store: Store,
    path: str,
    keywords: Sequence[Keyword],
    *,
    photo: str | None = None,
    adopt: bool = False,
    dry_run: bool = False,
) -> TagOutcome:
    """Make ``keywords`` our entries of a side-car; one that cannot be edited is left alone.

    A side-car that is not there yet takes over what ``photo`` holds. ``adopt`` believes the notes
    in the file: what they name counts as ours and may be replaced.
    """
    try:
        now, seen = _read(path)
        kept = written_sidecars(store).find(path)
        ours = noted(now) if adopt and now is not None else _ours(kept, now)
        start = now
        if now is None and keywords and photo is not None:
            with suppress(DataError):  # raw files hold nothing that we read
                inside = read_photo_metadata(Path(photo))
                start = begun(inside.packet, inside.words)
        after = tagged(start, keywords, ours) if now is not None or keywords else None
        if after is None or after == now:
            return TagOutcome(path, "unchanged")
        if now is not None and _is_as_written(kept, now) and differ_in_dates_alone(after, now):
            return TagOutcome(path, "unchanged")
        if not dry_run:
            if _is_as_written(kept, now):
                before = kept.before
            else:
                before = None if now is None else untagged(now, ours)
            wrote = KeptSidecar(before, hashlib.sha256(after).digest(), noted(after))
            written_sidecars(store).put(path, wrote)
            _replace(path, after, seen)
    except LabelwiseError as error:
        return TagOutcome(path, "left alone", str(error))
    return TagOutcome(path, "written")


def undo_sidecar(store: Store, path: str, *, dry_run: bool = False) -> TagOutcome:
    """Take our entries out of a side-car; one that we did not write is left alone."""
    try:
        now, seen = _read(path)
        kept = written_sidecars(store).find(path)
        if now is None or kept is None:
            return TagOutcome(path, "left alone", "it is gone" if now is None else "not ours")
        as_written = _is_as_written(kept, now)
        if not dry_run:
            if as_written and kept.before is None:
                _check_unchanged(path, seen)
                os.unlink(path)
            else:
                known = kept.before if as_written else None
                back = untagged(now, _ours(kept, now)) if known is None else known
                _replace(path, back, seen)
            written_sidecars(store).forget(path)
    except LabelwiseError as error:
        return TagOutcome(path, "left alone", str(error))
    except OSError as error:
        return TagOutcome(path, "left alone", error.strerror or str(error))
    return TagOutcome(path, "undone")


def _is_as_written(kept: KeptSidecar | None, now: bytes | None) -> TypeGuard[KeptSidecar]:
    """Return whether a side-car is byte for byte what we wrote."""
    return kept is not None and now is not None and hashlib.sha256(now).digest() == kept.after


def _ours(kept: KeptSidecar | None, now: bytes | None) -> Written:
    """Return the entries of a side-car that are known to be ours.

    Indexes of 0.1 kept no list of them: there, all that is noted and was not there before.
    """
    if kept is None or now is None:
        return NOTHING
    if kept.wrote is not None:
        return kept.wrote
    if _is_as_written(kept, now) or kept.before is None:
        return noted(now)
    return {
        prefix: set(names) - entries(kept.before)[prefix] for prefix, names in noted(now).items()
    }


def _read(path: str) -> tuple[bytes | None, tuple[int, int] | None]:
    try:
        content, facts = read_regular(path, LARGEST)
        return content, (facts.st_size, facts.st_mtime_ns)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise LabelwiseError(f"it cannot be read ({error.strerror})") from None


def _check_unchanged(path: str, seen: tuple[int, int] | None) -> None:
    try:
        facts = os.stat(path)
        now = (facts.st_size, facts.st_mtime_ns)
    except FileNotFoundError:
        now = None
    if now != seen:
        raise LabelwiseError("another program changed it just now; try again")


def _replace(path: str, data: bytes, seen: tuple[int, int] | None) -> None:
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(data)
        if seen is not None:
            os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        _check_unchanged(path, seen)
