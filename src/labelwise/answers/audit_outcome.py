"""What an audit found, in words and as files: the kept table, figures per tag, and a receipt.

    kept.csv      the table with the tags that can be trusted, as people corrected it
    train.parquet the same for training: tags that nobody answered carry their probability
    tags.csv      the share of right uses of each tag, and what was missed, with intervals
    audit.html    the same to look at (:mod:`labelwise.report.audit`)
    receipt.json  what was found, so that a second person can test it again

A file that labelwise did not write from this audit's log is never overwritten.
"""

import csv
import json
import secrets
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np

from labelwise import __version__
from labelwise.answers.agreement import require_own
from labelwise.answers.audit_session import AuditSession
from labelwise.answers.log import Note, now
from labelwise.data.export import export
from labelwise.data.rows import from_rows, read_json
from labelwise.data.table import LabelTable
from labelwise.decide.audits import Precision
from labelwise.decide.estimate import Recall, percent, recall_of
from labelwise.errors import DataError
from labelwise.pictures.sources import FileImages
from labelwise.system.files import sha256_of, summed, without_sum, write_error
from labelwise.system.text import as_cell, counted

KEPT, TAGS, PAGE, RECEIPT = "kept.csv", "tags.csv", "audit.html", "receipt.json"
TRAIN = "train.parquet"
NAMED = 3  # tags whose missed photos the verdict names
HEAD = (
    *("tag", "kept", "uses", "answered", "wrong", "unsure", "right", "right_low", "right_high"),
    *("tagged_share", "tagged_low", "tagged_high", "missed", "missed_low", "missed_high"),
)


def statement(session: AuditSession) -> str:
    """Return the verdict in words."""
    verdict = session.verdict()
    if session.settings.again:
        known, answers = precisions(session)[0], counted(verdict.answers, "new answer")
        level, of = percent(verdict.right_at_least), f"of these {known.uses:,} uses are right"
        if verdict.guaranteed:
            sure = f"{percent(verdict.confidence)} confidence"
            sure = "known, not estimated" if verdict.certain else sure
            return f"Confirmed: at least {level} {of} ({sure}, {answers})."
        if known.high < verdict.right_at_least:
            return f"Contradicted: at most {percent(known.high)} {of}, not {level} ({answers})."
        ends = f"{percent(known.low)} to {percent(known.high)}"
        return f"Not confirmed yet: {ends} {of} ({answers})."
    kept = {session.table.tags[k] for k in verdict.kept}
    missed = [
        (-recall.missing, f"About {recall.missing:,.0f} photos with {tag} were missed ({ends}).")
        for tag, recall in recalls(session).items()
        if recall.least_missing and tag in kept
        for ends in [f"{recall.least_missing:,} to {recall.most_missing:,}"]
    ]
    return " ".join((verdict.sentence(), *(words for _, words in sorted(missed)[:NAMED])))


def progress(session: AuditSession) -> str:
    """Return in words how far the audit is."""
    audit, verdict = session.known(), session.verdict()
    answers = counted(verdict.answers, "answer")
    if verdict.guaranteed and verdict.finished:
        return f"{answers}, the tags are guaranteed"
    if audit.test is None and not audit.per_tag:
        return f"{answers}, choosing the tags to keep"
    return f"{answers}, testing {counted(len(verdict.kept) or verdict.tags, 'tag')}"


def precisions(session: AuditSession) -> list[Precision]:
    """Return the share of right uses of each tag, or of all together in a repeated audit."""
    audit = session.known()
    kept = audit.kept() & audit.verdict().guaranteed
    return [audit.precision(k, kept) for k in range(len(audit.sizes))]


def recalls(session: AuditSession) -> dict[str, Recall]:
    """Return how much of each listed tag was tagged, by the random photos."""
    by_tag = dict[str, Recall]()
    for tag in session.listed if session.shown else ():
        own = [facts for photo, facts in session.shown.items() if session.found(photo, tag)]
        other = [facts for photo, facts in session.shown.items() if not session.found(photo, tag)]
        hits = sum(tag not in (*facts["wrong"], *facts["unsure"]) for facts in own)
        by_tag[tag] = recall_of(
            len(session.table.photos),
            len(session.table.uses[session.tags[tag]]),
            (len(other), sum(tag in facts["also"] for facts in other)),
            (len(own), hits),
            unsure=sum(tag in facts["unsure"] for facts in other),
            confidence=session.settings.confidence,
        )
    return by_tag


def known_tags(session: AuditSession) -> list[tuple[str, Precision, Recall | None]]:
    """Return each tag with what is known of its uses, and of what was missed."""
    names = ["all kept tags"] if session.settings.again else list(session.table.tags)
    missed = recalls(session)
    return [
        (name, known, missed.get(name))
        for name, known in zip(names, precisions(session), strict=True)
    ]


def corrected(session: AuditSession) -> tuple[list[list[str]], list[list[str]]]:
    """Return per photo the kept tags, as people corrected them, and those that are unknown."""
    audit, table = session.known(), session.table
    mask, kept, again = audit.kept(), set[str](), session.settings.again
    labels: list[set[str]] = [set() for _ in table.photos]
    unknown: list[set[str]] = [set() for _ in table.photos]
    for k, (tag, own) in enumerate(zip(table.tags, table.uses, strict=True)):
        if not again and not mask[k].any():
            continue
        kept.add(tag)
        for position, row in enumerate(own.tolist()):
            word = session.answers.get(session.use_of(k, position))
            inside = again or mask[k, audit.bins[k][position]]
            if word == "unsure" or (word is None and not inside):
                unknown[row].add(tag)
            elif word != "no":
                labels[row].add(tag)
    for photo, facts in session.shown.items():
        row = session.rows[photo]
        unknown[row] = (unknown[row] | kept.intersection(facts["unsure"])) - {*facts["wrong"]}
        labels[row] |= kept.intersection(facts["also"])
        labels[row] -= {*facts["wrong"], *unknown[row]}
    return [sorted(tags) for tags in labels], [sorted(tags) for tags in unknown]


def weighted(session: AuditSession) -> LabelTable:
    """Return the kept tags to train on: what nobody answered carries its probability.

    That is the share of right uses, or where a photo lacks the tag, of random photos that show it.
    """
    audit, own, recall = session.known(), session.table, recalls(session)
    labels, unknown = corrected(session)
    names = [own.tags[k] for k in session.verdict().kept]
    columns = {tag: column for column, tag in enumerate(names)}
    values, known = (np.zeros((len(own.photos), len(names)), np.float32) for _ in range(2))
    for row, (has, open_) in enumerate(zip(labels, unknown, strict=True)):
        values[row, [columns[tag] for tag in has]] = 1
        known[row] = 1
        known[row, [columns[tag] for tag in open_]] = 0
    right, seen = 1 - audit.unanswered_wrong(), np.isin(own.photos, list(session.shown))
    for tag, column in columns.items():
        k = session.tags[tag]
        listed, uses = seen & (tag in session.listed), own.uses[k]
        asked = [session.use_of(k, number) in session.answers for number in range(len(uses))]
        guess = np.zeros(len(own.photos), np.float32)
        if tag in recall:
            guess[:] = recall[tag].missing / max(len(own.photos) - len(uses), 1)
        guess[uses] = np.where(asked, values[uses, column], right[k, audit.bins[k]])
        values[:, column] = np.where(listed, values[:, column], guess)
    images = FileImages(session.folder.absolute(), own.photos)
    return LabelTable.from_arrays(names, images, values, known > 0, name="kept")


def write_outcome(session: AuditSession, out: Path, page: str) -> None:
    """Write what the audit found into its folder; the kept tags only if they are guaranteed."""
    made = session.verdict().guaranteed and not session.settings.again
    names = [*([KEPT, TRAIN] if made else []), TAGS, PAGE, RECEIPT]
    for name in (KEPT, TRAIN, *names):
        require_own(session.log, out / name)
    for name in () if made else (KEPT, TRAIN):
        (out / name).unlink(missing_ok=True)
    mark = secrets.token_hex(4)
    written = {name: out / f".{mark}.{name}" for name in names}
    try:
        if made:
            labels, unknown = corrected(session)
            images = (session.folder.absolute(), session.table.photos)
            export(from_rows(images, labels, name="kept", unknown=unknown), written[KEPT])
            export(weighted(session), written[TRAIN])
        with written[TAGS].open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([HEAD, *_rows(session)])
        written[PAGE].write_text(page, encoding="utf-8")
        facts = summed(_receipt(session, written.get(KEPT)))
        written[RECEIPT].write_text(json.dumps(facts, indent=1), encoding="utf-8")
        session.log.append(
            [Note("export", {"sha256": sha256_of(temporary)}) for temporary in written.values()]
        )
        for name, temporary in written.items():
            temporary.replace(out / name)
    except OSError as error:
        raise write_error(out, error) from None
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


def read_receipt(path: Path) -> dict[str, Any]:
    """Return what a receipt says, if its table is as it was."""
    content = read_json(path)
    facts = without_sum(content) if isinstance(content, dict) and content else None
    if facts is None or facts.get("format") != 1:
        raise DataError(f"{path} is not a receipt as `labelwise audit` wrote it")
    kept = path.parent / KEPT
    if facts["kept_sha256"] is None:
        raise DataError(f"{path}: nothing was guaranteed, so no tag was kept")
    if not kept.is_file() or sha256_of(kept) != facts["kept_sha256"]:
        raise DataError(f"{kept} must be the table of the receipt, and it is not as it was written")
    return facts


def _receipt(session: AuditSession, kept: Path | None) -> dict[str, object]:
    verdict, own = session.verdict(), session.table
    return {
        "labelwise": __version__,
        "format": 1,
        "when": now(),
        "source": own.source,
        "table": own.digest(),
        "photos": len(own.photos),
        "uses": len(own),
        **vars(session.settings),
        "kept": [] if session.settings.again else [own.tags[k] for k in verdict.kept],
        "kept_uses": verdict.uses,
        "guaranteed": verdict.guaranteed,
        "answers": verdict.answers,
        "people": session.people,
        "statement": statement(session),
        "kept_sha256": None if kept is None else sha256_of(kept),
    }


def _rows(session: AuditSession) -> list[list[str]]:
    rows = []
    for name, known, missed in known_tags(session):
        cells = [name, "yes" if known.kept else "no", known.uses, known.answered]
        cells += [known.wrong - known.unsure, known.unsure]
        cells += _shares(known.estimate, known.low, known.high)
        cells += [""] * 6 if missed is None else _shares(missed.recall, missed.low, missed.high)
        if missed is not None:
            cells += [round(missed.missing), missed.least_missing, missed.most_missing]
        rows.append([as_cell(str(cell)) for cell in cells])
    return rows


def _shares(centre: float | None, low: float, high: float) -> list[str]:
    """Return a share and its interval, rounded outwards; nothing where it is not known."""
    if centre is None:
        return ["", "", ""]
    return [f"{centre:.4f}", f"{floor(1e4 * low) / 1e4:.4f}", f"{ceil(1e4 * high) / 1e4:.4f}"]
