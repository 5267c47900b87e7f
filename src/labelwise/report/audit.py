"""The page of an audit: the verdict first, then every tag with its interval."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from labelwise.answers.audit_session import AuditSession, known_tags, statement, write_outcome
from labelwise.base.markup import Cell, Markup, document, paragraph, section, table, tag
from labelwise.base.text import counted
from labelwise.decide.audits import Precision
from labelwise.decide.estimate import Recall, percent
from labelwise.errors import LabelwiseError
from labelwise.pictures.sources import FileImages
from labelwise.report.charts import Dots, dot_plot
from labelwise.report.contact_sheet import SIDE, card, file_name

Known = tuple[str, Precision, Recall | None]
NAMED = 30  # kept and dropped tags in the verdict
DRAWN = 40  # tags in the chart
PICTURED = 24  # wrong uses that are shown, the last ones
HOW = (
    "A use is one tag on one photo. People answered about uses drawn at random; 'unsure' counts as "
    "wrong. A few answers per tag chose the tags to keep. New answers then tested the kept tags "
    "together, by a betting test that holds whenever you stop (Waudby-Smith and Ramdas 2024).",
    "The intervals per tag hold whenever you stop, too. What was missed is estimated from photos "
    "drawn at random: people said which of the most used tags they show (Clopper and "
    "Pearson). Scores, if there are any, only chose the questions.",
)


def write_audit(session: AuditSession, out: Path) -> None:
    """Write the page, the tables and the receipt of an audit into its folder."""
    write_outcome(session, out, page(session))


def page(session: AuditSession) -> str:
    """Return the page as text."""
    verdict, known, own = session.verdict(), known_tags(session), session.table
    people = ", ".join(session.people) or "nobody"
    tags, photos = counted(len(own.tags), "tag"), counted(len(own.photos), "photo")
    made = (
        f"{own.source}: {len(own):,} uses of {tags} on {photos}; "
        f"{counted(verdict.answers, 'answer')} by {people}; seed {session.settings.seed}."
    )
    known.sort(key=lambda tag: (not tag[1].kept, -tag[1].uses))
    not_kept = "dropped" if verdict.guaranteed else "not decided"
    first = _verdict(session, known)
    shown = section("tags", "How often each tag is right", _chart(known), _table(known, not_kept))
    how = section("how", "How it was computed", paragraph(made), *map(paragraph, HOW))
    wrong = []
    for photo, name in session.denied()[-PICTURED:]:
        image = None
        with suppress(LabelwiseError):
            image = FileImages(session.folder, [photo]).read(0, SIDE)
        caption = (tag("strong", f"not {name}"), file_name(photo))
        wrong.append(card(image, photo, *caption, missing="The file cannot be read now."))
    seen = section("wrong", "People said these are wrong", tag("ul", *wrong, class_="sheet"))
    pictured = [("wrong", "Wrong", seen)] if wrong else []
    parts = [("tags", "Tags", shown), *pictured, ("how", "How", how)]
    return document("Audit of tags", statement(session), [("verdict", "Verdict", first), *parts])


def _verdict(session: AuditSession, known: Sequence[Known]) -> Markup:
    """Return the verdict in large letters, and which tags are kept and dropped."""
    verdict = session.verdict()
    level, uses = percent(verdict.right_at_least), f"{verdict.uses:,} uses"
    kept = [name for name, own, _ in known if own.kept]
    if verdict.guaranteed:
        word = "guaranteed"
        words = f"at least {level} of these {uses} together are right"
    else:
        word = "not guaranteed"
        words = f"it is not known yet whether {level} of the uses are right"
    dropped = [name for name, own, _ in known if not own.kept] if verdict.guaranteed else []
    lines = [tag("p", tag("span", word, class_="word"), f" {words}", class_="verdict")]
    for title, names in (("Kept", kept), ("Dropped", dropped)):
        if names:
            more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
            heading = tag("strong", f"{title} ({len(names):,}): ")
            lines.append(tag("p", heading, f"{', '.join(names[:NAMED])}{more}."))
    return section("verdict", "Verdict", *lines)


def _chart(known: Sequence[Known]) -> Markup | None:
    rows = []
    for name, estimate, _ in known:
        if estimate.estimate is not None:
            share, low, high = estimate.estimate, estimate.low, estimate.high
            style, words = "after" if estimate.kept else "absent", _counted(estimate)
            shares = (100 * share, 100 * low, 100 * high)
            rows.append(Dots(name, {}, *shares, words, style, estimate.kept))
    rows = rows[:DRAWN]
    if not rows:
        return None
    title = "Share of right uses by tag"
    words = "; ".join(f"{row.name} {row.text}" for row in rows)
    x = "per cent of uses that are right"
    chart = dot_plot(rows, title=title, x=x, description=words, ends=(0, 100))
    note = "Kept tags are bold. Bars are intervals; at the right, how many answers said yes."
    return tag("figure", chart, tag("figcaption", note))


def _table(known: Sequence[Known], not_kept: str) -> Markup:
    cells: list[list[str | Cell]] = []
    for name, estimate, missed in known:
        ends = " to ".join(dict.fromkeys(map(percent, (estimate.low, estimate.high))))
        lost = "" if missed is None else f"{missed.missing:,.0f}"
        range_ = "" if missed is None else f"{missed.least_missing:,} to {missed.most_missing:,}"
        row: list[str | Cell] = [name, "kept" if estimate.kept else not_kept]
        row += [Cell(f"{estimate.uses:,}", estimate.uses)]
        row += [Cell(_counted(estimate), estimate.answered)]
        row += ["" if estimate.estimate is None else ends]
        cells.append([*row, Cell(lost, -1 if missed is None else missed.missing), range_])
    head = ("tag", "", "uses", "answered yes", "right", "photos missed", "from, to")
    asked = len(head) if any(missed for _, _, missed in known) else -2
    return table(head[:asked], [row[:asked] for row in cells], caption="Every tag", sortable=True)


def _counted(estimate: Precision) -> str:
    return f"{estimate.answered - estimate.wrong:,} of {estimate.answered:,}"
