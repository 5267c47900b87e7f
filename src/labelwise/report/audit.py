"""What an audit leaves behind: a page with the verdict first, two tables and a receipt.

    kept.csv      the table with the tags that can be trusted, as people corrected it
    tags.csv      the share of right uses of each tag, and what was missed, with intervals
    audit.html    the same to look at
    receipt.json  what was found, so that a second person can test it again

A file that labelwise did not write from this audit's log is never overwritten.
"""

import csv
import json
import secrets
from collections.abc import Sequence
from math import ceil, floor
from pathlib import Path

from labelwise import __version__
from labelwise.answers.agreement import require_own
from labelwise.answers.audit_session import AuditSession
from labelwise.answers.log import Note, now
from labelwise.data.export import export
from labelwise.data.rows import from_rows
from labelwise.decide.audits import Precision
from labelwise.decide.estimate import Recall
from labelwise.markup import Cell, Markup, document, paragraph, section, table, tag
from labelwise.report.charts import Dots, dot_plot
from labelwise.system.files import sha256_of, summed, write_error
from labelwise.system.text import as_cell, counted

KEPT, TAGS, PAGE, RECEIPT = "kept.csv", "tags.csv", "audit.html", "receipt.json"
DRAWN = 40  # tags in the chart
NAMED = 3  # tags whose missed photos the verdict names
HEAD = (
    *("tag", "kept", "uses", "answered", "wrong", "unsure", "right", "right_low", "right_high"),
    *("tagged_share", "tagged_low", "tagged_high", "missed", "missed_low", "missed_high"),
)
HOW = (
    "A use is one tag on one photo. People answered about uses drawn at random; 'unsure' counts as "
    "wrong. A few answers per tag chose the tags to keep. New answers then tested the kept tags "
    "together, by a betting test that holds whenever you stop (Waudby-Smith and Ramdas 2024).",
    "The intervals per tag hold whenever you stop, too. What was missed is estimated from photos "
    "drawn at random, of which people said which of the most used tags they show (Clopper and "
    "Pearson). Scores, if there are any, only chose the questions.",
)


def statement(session: AuditSession) -> str:
    """Return the verdict in words."""
    verdict = session.verdict()
    if session.settings.again:
        known, answers = session.precisions()[0], counted(verdict.answers, "new answer")
        level, of = _percent(verdict.right_at_least), f"of these {known.uses:,} uses are right"
        if verdict.guaranteed:
            sure = f"{_percent(verdict.confidence)} confidence"
            sure = "known, not estimated" if verdict.certain else sure
            return f"Confirmed: at least {level} {of} ({sure}, {answers})."
        if known.high < verdict.right_at_least:
            return f"Contradicted: at most {_percent(known.high)} {of}, not {level} ({answers})."
        ends = f"{_percent(known.low)} to {_percent(known.high)}"
        return f"Not confirmed yet: {ends} {of} ({answers})."
    kept = {session.table.tags[k] for k in verdict.kept}
    recalls = [(t, one) for t, one in session.recalls().items() if one.least_missing and t in kept]
    most = sorted(recalls, key=lambda pair: -pair[1].missing)[:NAMED]
    missed = [
        f"About {one.missing:,.0f} photos with {tag} were missed "
        f"({one.least_missing:,} to {one.most_missing:,})."
        for tag, one in most
    ]
    return " ".join((verdict.sentence(), *missed))


def write_outcome(session: AuditSession, out: Path) -> list[Path]:
    """Write what the audit found into its folder; the kept tags only if they are guaranteed."""
    made = session.verdict().guaranteed and not session.settings.again
    names = [*([KEPT] if made else []), TAGS, PAGE, RECEIPT]
    for name in names:
        require_own(session.log, out / name)
    if not made and (out / KEPT).exists():
        require_own(session.log, out / KEPT)
        (out / KEPT).unlink()
    mark = secrets.token_hex(4)
    written = {name: out / f".{mark}.{name}" for name in names}
    try:
        for name, temporary in written.items():
            _write(session, name, temporary, written.get(KEPT))
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
    return [out / name for name in names]


def _write(session: AuditSession, name: str, path: Path, kept: Path | None) -> None:
    if name == KEPT:
        labels, unknown = session.corrected()
        images = (session.folder.absolute(), session.table.photos)
        export(from_rows(images, labels, name="kept", unknown=unknown), path)
    elif name == TAGS:
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([HEAD, *_rows(session)])
    elif name == PAGE:
        path.write_text(page(session), encoding="utf-8")
    else:
        path.write_text(json.dumps(summed(_receipt(session, kept)), indent=1), encoding="utf-8")


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


def _known(session: AuditSession) -> list[tuple[str, Precision, Recall | None]]:
    names = ["all kept tags"] if session.settings.again else list(session.table.tags)
    recalls = session.recalls()
    return [
        (name, known, recalls.get(name))
        for name, known in zip(names, session.precisions(), strict=True)
    ]


def _rows(session: AuditSession) -> list[list[str]]:
    rows = []
    for name, known, missed in _known(session):
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


def page(session: AuditSession) -> str:
    """Return the page as text."""
    verdict, known, own = session.verdict(), _known(session), session.table
    people = ", ".join(session.people) or "nobody"
    tags, photos = counted(len(own.tags), "tag"), counted(len(own.photos), "photo")
    made = (
        f"{own.source}: {len(own):,} uses of {tags} on {photos}; "
        f"{counted(verdict.answers, 'answer')} by {people}; seed {session.settings.seed}."
    )
    known.sort(key=lambda one: (not one[1].kept, -one[1].uses))
    shown = section("tags", "How often each tag is right", _chart(known), _table(known))
    how = section("how", "How it was computed", paragraph(made), *map(paragraph, HOW))
    parts = [("tags", "Tags", shown), ("how", "How", how)]
    return document("Audit of tags", statement(session), parts)


def _chart(known: Sequence[tuple[str, Precision, Recall | None]]) -> Markup | None:
    rows = [
        Dots(
            name,
            {},
            100 * one.estimate,
            100 * one.low,
            100 * one.high,
            _counted(one),
            "after" if one.kept else "absent",
            one.kept,
        )
        for name, one, _ in known
        if one.estimate is not None
    ][:DRAWN]
    if not rows:
        return None
    title = "Share of right uses by tag"
    words = "; ".join(f"{row.name} {row.text}" for row in rows)
    x = "per cent of uses that are right"
    chart = dot_plot(rows, title=title, x=x, description=words, ends=(0, 100))
    note = "Kept tags are bold. Bars are intervals; at the right, how many answers said yes."
    return tag("figure", chart, tag("figcaption", note))


def _table(known: Sequence[tuple[str, Precision, Recall | None]]) -> Markup:
    cells: list[list[str | Cell]] = []
    for name, one, missed in known:
        ends = "" if one.estimate is None else f"{_percent(one.low)} to {_percent(one.high)}"
        lost = "" if missed is None else f"{missed.missing:,.0f}"
        range_ = "" if missed is None else f"{missed.least_missing:,} to {missed.most_missing:,}"
        cells.append(
            [
                name,
                "kept" if one.kept else "dropped",
                Cell(f"{one.uses:,}", one.uses),
                Cell(_counted(one), one.answered),
                ends,
                Cell(lost, -1 if missed is None else missed.missing),
                range_,
            ]
        )
    head = ("tag", "", "uses", "answered yes", "right", "photos missed", "from, to")
    return table(head, cells, caption="Every tag", sortable=True)


def _counted(one: Precision) -> str:
    return f"{one.answered - one.wrong:,} of {one.answered:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
