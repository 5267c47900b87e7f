"""Curves per label and per subgroup: ROC, precision and recall, reliability; and the gaps."""

from collections.abc import Sequence

from labelwise.evaluation import Evaluation, LabelCurves, SubgroupFigure
from labelwise.markup import Markup, details, join, paragraph, percent, plain, section, table, tag
from labelwise.markup.svg import Axis, Frame, path
from labelwise.report.charts import Stage, reliability_thumbnail

OPEN = 6  # labels whose curves are not folded away


def curves(evaluation: Evaluation) -> Markup | None:
    """Return the section, or nothing where no curve was kept."""
    whole = [one for one in evaluation.curves if not one.part]
    if not whole:
        return None
    by = evaluation.subgroups[0].by if evaluation.subgroups else "subgroup"
    parts = {
        one.label: [each for each in evaluation.curves if each.part and each.label == one.label]
        for one in whole
    }
    shown = [_label(one, parts[one.label], by) for one in whole]
    folded = shown[OPEN:]
    split = any(parts.values())
    lines = f"Thin lines: each {by}, those with the most photos. " if split else ""
    return section(
        "curves",
        "Curves",
        paragraph(
            f"The {len(whole)} labels of lowest average precision. Left: sensitivity against the "
            "false positive rate (ROC); middle: precision against recall; right: observed share "
            f"against probability. {lines}Axes run from 0 to 1; on the dotted line a score tells "
            "nothing (ROC), or a probability means what it says (right).",
            class_="muted",
        ),
        *shown[:OPEN],
        details(f"{len(folded)} more labels", join(*folded)) if folded else None,
    )


def _label(one: LabelCurves, parts: Sequence[LabelCurves], by: str) -> Markup:
    charts = [
        _lines(f"ROC curve of {one.label}", [(each.part, each.roc) for each in (*parts, one)]),
        _lines(
            f"Precision and recall of {one.label}",
            [(each.part, each.precision_recall) for each in (*parts, one)],
            ideal=False,
        ),
    ]
    if one.reliability is not None:
        stages: list[Stage] = [("after", "all photos", one.reliability)]
        charts.append(reliability_thumbnail(stages, title=f"Reliability of {one.label}"))
    text = (
        f"AUROC {_interval(one)}, average precision {percent(one.ap)}, "
        f"{one.present:,} present of {one.known:,}"
    )
    return join(
        tag("h3", one.label),
        paragraph(text, class_="small muted"),
        tag("div", *(tag("figure", chart) for chart in charts), class_="thumbs"),
        _parts(one.label, parts, by) if parts else None,
    )


def _interval(one: LabelCurves) -> str:
    if one.auroc is None:
        return "undefined"
    if one.auroc_low is None or one.auroc_high is None:
        return f"{one.auroc:.3f} (no interval)"
    return f"{one.auroc:.3f} ({one.auroc_low:.3f} to {one.auroc_high:.3f})"


def _lines(
    title: str,
    lines: Sequence[tuple[str, tuple[tuple[float, float], ...]]],
    *,
    ideal: bool = True,
) -> Markup:
    axis = Axis(0, 1, [(0, "0"), (0.5, ""), (1, "1")])
    frame = Frame(axis, axis, 150, 140, left=18, right=6, top=6, bottom=18)
    diagonal = path([(frame.px(0), frame.py(0)), (frame.px(1), frame.py(1))], class_="ideal")
    drawn = [
        tag(
            "g",
            tag("title", name or "all photos"),
            path(
                [(frame.px(x), frame.py(y)) for x, y in points],
                class_="line m7" if name else "line after strong",
            ),
        )
        for name, points in lines
        if len(points) > 1
    ]
    text = " ".join(
        f"{name or 'all photos'}: {len(points)} points."
        for name, points in lines
        if len(points) > 1
    )
    return frame.draw(*([diagonal] if ideal else []), *drawn, title=title, description=text)


def _parts(label: str, parts: Sequence[LabelCurves], by: str) -> Markup:
    rows = [
        [
            one.part,
            f"{one.present:,} of {one.known:,}",
            _interval(one),
            percent(one.ap),
            percent(one.reliability.ece if one.reliability else None, 2),
        ]
        for one in parts
    ]
    return table(
        [by, "present", "AUROC", "average precision", "ECE"],
        rows,
        caption=f"{label}: AUROC with its 95 % interval (over groups of photos, where there are).",
    )


def subgroups(evaluation: Evaluation) -> Markup | None:
    """Return the section of figures by subgroup, or nothing without any."""
    if not evaluation.subgroups:
        return None
    return section("subgroups", "Subgroups", *subgroup_tables(evaluation))


def subgroup_tables(evaluation: Evaluation) -> list[Markup]:
    """Return a table for each column that makes subgroups, and what was told apart."""
    found = []
    for by in dict.fromkeys(row.by for row in evaluation.subgroups):
        rows = [row for row in evaluation.subgroups if row.by == by]
        apart = [
            f"{figure.name} of {row.name}"
            for row in rows
            for figure in row.figures
            if figure.differs
        ]
        names = [figure.name for figure in rows[0].figures]
        verdict = (
            f"Told apart from the other photos: {', '.join(apart)}."
            if apart
            else "No subgroup can be told apart from the other photos. That does not mean equal: "
            "the intervals say how far apart they may be."
        )
        found += [
            table(
                [by, "photos", "groups", *names],
                [
                    [row.name, f"{row.photos:,}", f"{row.groups:,}", *map(_figure, row.figures)]
                    for row in rows
                ],
                caption=f"By {by}, with 95 % intervals; * differs from the other photos (score "
                "test over groups of photos, 5 %, corrected for all subgroups and figures by "
                "Holm's method).",
                wide=True,
                pinned=True,
            ),
            paragraph(verdict, class_="note" if apart else "muted"),
        ]
    return found


def _figure(figure: SubgroupFigure) -> str:
    if figure.value is None:
        return "–"
    mark = " *" if figure.differs else ""
    if figure.low is None or figure.high is None:
        return f"{plain(figure.value, 3)}{mark}"
    return f"{plain(figure.value, 3)} ({plain(figure.low, 3)} to {plain(figure.high, 3)}){mark}"
