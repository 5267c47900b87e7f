"""Sections on probabilities and labels: calibration, labels, curves, subgroups, search."""

from collections.abc import Sequence

from labelwise.base.markup import (
    INFINITE,
    Cell,
    Markup,
    chance,
    details,
    figure,
    join,
    paragraph,
    percent,
    plain,
    section,
    side_by_side,
    table,
    tag,
)
from labelwise.base.svg import path
from labelwise.base.text import listed
from labelwise.evaluation import (
    Calibration,
    Curve,
    Evaluation,
    LabelCurves,
    LabelRow,
    SubgroupFigure,
)
from labelwise.report.charts import (
    AS_GIVEN,
    Series,
    Stage,
    diagonal,
    filled_bins,
    line_chart,
    reliability_chart,
    scatter_chart,
    thumbnail_frame,
)

WORST = 12


def calibration(evaluation: Evaluation) -> Markup | None:
    """Return the section, or what is missing where the model only ranks."""
    parts = [stage for stage in (evaluation.before, evaluation.after) if stage is not None]
    if not parts:
        words = (
            "This model ranks labels and gives no probabilities. Calibrate it on validation data "
            "first; nothing is drawn here, because nothing was invented."
        )
        return section("calibration", "Calibration", paragraph(words))
    words = "Every known image–label pair is one entry."
    pooled = _figure("All entries", [p.pooled for p in parts], parts, words)
    title = f"The {parts[-1].k} surest labels of each image"
    words = "What a reader of the top answers sees; harder than the pool, mostly easy zeros."
    top = _figure(title, [p.top_k for p in parts], parts, words)
    both = paragraph(_sentence(parts)), side_by_side(pooled, top, _comparison(parts))
    return section("calibration", "Calibration", *both, _labels(parts))


def _stages(curves: list[Curve], parts: list[Calibration]) -> list[Stage]:
    """Return class, name and curve of each stage; where nothing was calibrated, none is before."""
    if len(parts) == 2:
        return [("before", "before", curves[0]), ("after", "after", curves[1])]
    return [("after", AS_GIVEN if parts[0].stage == "before" else parts[0].stage, curves[0])]


def _figure(title: str, curves: list[Curve], parts: list[Calibration], text: str) -> Markup:
    stages = _stages(curves, parts)
    chart = reliability_chart(stages, title=f"Reliability: {title.lower()}")
    head, numbers = ["bin", "mean probability", "observed share", "entries"], []
    for _, name, curve in stages:
        errors = f"ECE {percent(curve.ece, 2)}, ACE {percent(curve.ace, 2)}"
        text += f" {name.capitalize()}: {errors}, MCE {percent(curve.mce, 1)}."
        bins = curve.edges[:-1], curve.edges[1:], curve.confidence, curve.frequency, curve.counts
        rows = [
            [f"{low:.2f} to {high:.2f}", percent(said), percent(seen), f"{count:,}"]
            for low, high, said, seen, count in zip(*bins, strict=True)
        ]
        numbers.append(table(head, rows, caption=f"{title}, {name}"))
    return figure(chart, f"{title}.", text, details("Numbers", join(*numbers)))


def _sentence(parts: list[Calibration]) -> str:
    final = parts[-1].pooled
    busiest = [bin for bin in filled_bins(final) if bin[0] >= 0.5]
    text = "On the diagonal a probability means what it says."
    if busiest:
        confidence, seen, count = max(busiest, key=lambda b: b[2])
        text += f" Of the {count:,} entries given about {chance(confidence)},"
        text += f" {chance(seen)} were truly present."
    if len(parts) == 2:
        before, after = percent(parts[0].pooled.ece, 2), percent(final.ece, 2)
        text += " The expected calibration error over all entries went from"
        text += f" {before} before calibration to {after} after it."
    return text


def _comparison(parts: list[Calibration]) -> Markup:
    final = parts[-1]
    lines = [
        ("ECE, all entries", [percent(p.pooled.ece, 2) for p in parts]),
        ("ACE, all entries", [percent(p.pooled.ace, 2) for p in parts]),
        ("MCE, all entries", [percent(p.pooled.mce, 2) for p in parts]),
        ("ECE, mean over labels", [percent(p.label_mean_ece, 2) for p in parts]),
        (f"ECE, top {final.k}", [percent(p.top_k.ece, 2) for p in parts]),
        ("Log loss", [INFINITE if p.infinite else plain(p.log_loss) for p in parts]),
        ("Brier score", [plain(p.brier) for p in parts]),
        ("  of which miscalibration", [plain(p.reliability, 5) for p in parts]),
        ("  resolution (more is better)", [plain(p.resolution, 5) for p in parts]),
        ("  uncertainty of the labels", [plain(p.uncertainty, 5) for p in parts]),
    ]
    bins = len(final.pooled.counts)
    head = ["", *(name for _, name, _ in _stages([p.pooled for p in parts], parts))]
    caption = f"Calibration errors in {bins} equal-width bins; lower is better unless stated."
    return table(head, [[name, *values] for name, values in lines], caption=caption)


def _labels(parts: list[Calibration]) -> Markup | None:
    final = parts[-1]
    if not final.per_label:
        return None
    worst = sorted(final.per_label, key=lambda name: -(final.per_label[name].ece or 0.0))[:WORST]
    thumbs = []
    for name in worst:
        curves = [p.per_label[name] for p in parts if name in p.per_label]
        stages = _stages(curves, parts[-len(curves) :])
        chart = reliability_chart(stages, title=f"Reliability of {name}", small=True)
        curve = final.per_label[name]
        text = f"ECE {percent(curve.ece, 2)}, n {sum(curve.counts):,}"
        thumbs.append(tag("figure", chart, tag("figcaption", tag("b", name), text)))
    words = f"The {len(worst)} labels with the largest ECE of their own."
    heading = tag("h3", "Labels, worst calibrated first"), paragraph(words, class_="muted")
    return join(*heading, tag("div", *thumbs, class_="thumbs"))


SHOWN = 300


def labels(evaluation: Evaluation) -> Markup:
    """Return the section; a long list is cut and says so."""
    rows = sorted(evaluation.rows, key=lambda row: (row.ap is None, row.ap or 0.0))
    cut = left_out = None
    if len(rows) > SHOWN:
        words = f"The {SHOWN} labels of lowest average precision out of {len(rows):,}"
        cut = paragraph(f"{words}; all of them are in evaluation.json.", class_="muted")
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        words = (
            "Without a known positive, so without an average precision, and left out of the mean"
        )
        few = f"{len(undefined):,} of {len(rows):,} labels ({listed(undefined, 20)})"
        left_out = paragraph(f"{words}: {few}.", class_="note")
    drawn = side_by_side(_cloud(rows), *_groups(evaluation))
    shown = _table(rows[:SHOWN], evaluation)
    return section("labels", "Labels, worst first", left_out, drawn, cut, shown)


def _cloud(rows: list[LabelRow]) -> Markup | None:
    points = [(row.name, float(row.present), row.ap) for row in rows if row.ap is not None]
    if len(points) < 3:
        return None
    title = "Average precision against number of positives"
    x, y = "images with the label (log)", "average precision"
    chart = scatter_chart(points[:SHOWN], title=title, x=x, y=y)
    return figure(chart, "Each dot is a label.", "The rarer a label, the less certain its figure.")


def _groups(evaluation: Evaluation) -> list[Markup]:
    shots, levels, exclusive = [], [], []
    for shot in evaluation.shots:
        means = percent(shot.mean_ap), percent(shot.mean_recall)
        shots.append([shot.name, f"{shot.labels:,}", *means])
    for level in evaluation.levels:
        counts = str(level.level), f"{level.labels:,}", f"{level.present:,}"
        figures = plain(level.log_loss, 4), percent(level.ece, 2), percent(level.mean_f1)
        levels.append([*counts, percent(level.mean_ap), *figures])
    for group in evaluation.exclusive:
        between = "" if group.low is None else f"{percent(group.low)} to {percent(group.high)}"
        rule = "exactly one" if group.needs_one else "at most one"
        broken = "–" if group.broken is None else f"{group.broken:,}"
        found = (f"{group.known:,}", percent(group.accuracy), between, broken)
        exclusive.append([f"{rule} of {', '.join(group.labels)}", *found, f"{group.clashes:,}"])
    tables = (
        (
            "in training,labels,mAP,recall",
            shots,
            "Labels by the number of their training images; means over the labels of a group.",
        ),
        (
            "level,labels,present,mAP,log loss,ECE,F1",
            levels,
            "Labels by their depth in the taxonomy, 1 at the top; mAP and F1 are means.",
        ),
        (
            "labels that exclude each other,known,right,95 %,sets break it,clashes",
            exclusive,
            "Right: the set holds of these labels what is there, and nothing else; of photos "
            "with all of them known. Clashes: photos whose labels break the rule, left out.",
        ),
    )
    return [table(head.split(","), rows, caption=words) for head, rows, words in tables if rows]


def _table(rows: list[LabelRow], evaluation: Evaluation) -> Markup:
    head = ["label", "present", "average precision"]
    two = evaluation.before is not None and evaluation.after is not None
    calibrated, decided = evaluation.final is not None, evaluation.sets is not None
    if calibrated:
        head += ["mean p / share", *(["ECE before"] if two else []), "ECE"]
    if decided:
        head += ["threshold", "precision", "recall", "F1"]
    body = []
    for row in rows:
        cells: list[str | Cell] = [row.name, Cell(f"{row.present:,}", row.present)]
        cells.append(Cell(percent(row.ap), row.ap, meter=True))
        if calibrated:
            share = row.present / row.known if row.known else None
            cells.append(Cell(f"{percent(row.mean_prob)} / {percent(share)}", row.mean_prob))
            if two:
                cells.append(Cell(percent(row.ece_before, 2), row.ece_before))
            last = row.ece_after if two else row.ece_before
            cells.append(Cell(percent(last, 2), last))
        if decided:
            cells.append(Cell(plain(row.threshold, 3), row.threshold))
            cells += [Cell(percent(v), v) for v in (row.precision, row.recall, row.f1)]
        body.append(cells)
    caption = (
        "Present: images known to carry the label. Mean p / share: the mean probability it was "
        "given, and the share of images that carry it."
    )
    return table(head, body, caption=caption, sortable=True, wide=True, pinned=True)


def search(evaluation: Evaluation) -> Markup | None:
    """Return the section, or nothing where retrieval was not measured."""
    points = [p for p in evaluation.retrieval if p.map is not None]
    if not points:
        return None
    lengths, means = [p.length for p in points], [p.map or 0.0 for p in points]
    errors = [1.96 * (p.error or 0.0) for p in points]
    series = Series("after", "mean AP of the queries", lengths, means, errors)
    named = {"title": "Retrieval mAP", "x": "labels in the query", "y": "mAP"}
    chart = line_chart([series], **named, whole=True, zero=True)
    rows = []
    for p in evaluation.retrieval:
        error = percent(p.error, 2) if p.error else "exact"
        rows.append([str(p.length), percent(p.map, 2), error, f"{p.queries:,}", f"{p.skipped:,}"])
    head = ["length", "mAP", "error", "queries", "left out"]
    caption = "Error: standard error of a sampled mean. Left out: queries no image answers."
    whiskers = "Mean average precision; whiskers are 95 % intervals where queries were sampled."
    words = (
        "A query such as “dog, -beach” names labels that must be there and labels that must not. "
        "The longer it is, the better its joint probability must be."
    )
    drawn = figure(chart, "Retrieval against query length.", whiskers)
    both = side_by_side(drawn, table(head, rows, caption=caption))
    return section("search", "Search", paragraph(words), both)


OPEN = 6  # labels whose curves are not folded away


def curves(evaluation: Evaluation) -> Markup | None:
    """Return the section, or nothing where no curve was kept."""
    whole = [curve for curve in evaluation.curves if not curve.part]
    if not whole:
        return None
    by = evaluation.subgroups[0].by if evaluation.subgroups else "subgroup"
    parts = [curve for curve in evaluation.curves if curve.part]
    shown = []
    for curve in whole:
        own = [part for part in parts if part.label == curve.label]
        shown.append(_label_curves(curve, own, by))
    folded = shown[OPEN:]
    lines = f"Thin lines: each {by}, those with the most photos. " if parts else ""
    words = (
        f"The {len(whole)} labels of lowest average precision. Left: sensitivity against the false "
        "positive rate (ROC); middle: precision against recall; right: observed share against "
        f"probability. {lines}Axes run from 0 to 1; on the dotted line a score tells nothing "
        "(ROC), or a probability means what it says (right)."
    )
    more = details(f"{len(folded)} more labels", join(*folded)) if folded else None
    return section("curves", "Curves", paragraph(words, class_="muted"), *shown[:OPEN], more)


def _label_curves(one: LabelCurves, parts: Sequence[LabelCurves], by: str) -> Markup:
    every = (*parts, one)
    precision = [(c.part, c.precision_recall) for c in every]
    charts = [_thumbnail(f"ROC curve of {one.label}", [(c.part, c.roc) for c in every])]
    charts.append(_thumbnail(f"Precision and recall of {one.label}", precision, ideal=False))
    if one.reliability is not None:
        stages: list[Stage] = [("after", "all photos", one.reliability)]
        title = f"Reliability of {one.label}"
        charts.append(reliability_chart(stages, title=title, small=True))
    text = f"AUROC {_interval(one)}, average precision {percent(one.ap)}"
    text += f", {one.present:,} present of {one.known:,}"
    rows = []
    for subgroup in parts:
        present = f"{subgroup.present:,} of {subgroup.known:,}"
        ece = percent(subgroup.reliability.ece if subgroup.reliability else None, 2)
        rows.append([subgroup.part, present, _interval(subgroup), percent(subgroup.ap), ece])
    head = [by, "present", "AUROC", "average precision", "ECE"]
    words = "AUROC with its 95 % interval (over groups of photos, where there are)."
    by_part = table(head, rows, caption=f"{one.label}: {words}")
    heading = tag("h3", one.label), paragraph(text, class_="small muted")
    drawn = tag("div", *(tag("figure", chart) for chart in charts), class_="thumbs")
    return join(*heading, drawn, by_part if parts else None)


def _interval(one: LabelCurves) -> str:
    if one.auroc is None:
        return "undefined"
    if one.auroc_low is None or one.auroc_high is None:
        return f"{one.auroc:.3f} (no interval)"
    return f"{one.auroc:.3f} ({one.auroc_low:.3f} to {one.auroc_high:.3f})"


def _thumbnail(
    title: str,
    lines: Sequence[tuple[str, tuple[tuple[float, float], ...]]],
    *,
    ideal: bool = True,
) -> Markup:
    frame = thumbnail_frame()
    shown = [(name or "all photos", name, points) for name, points in lines if len(points) > 1]
    drawn = []
    for words, name, points in shown:
        style = "line m7" if name else "line after strong"
        line = path([(frame.px(x), frame.py(y)) for x, y in points], style)
        drawn.append(tag("g", tag("title", words), line))
    text = " ".join(f"{words}: {len(points)} points." for words, _, points in shown)
    return frame.draw(*([diagonal(frame)] if ideal else []), *drawn, title=title, description=text)


def subgroups(evaluation: Evaluation) -> Markup | None:
    """Return the section of figures by subgroup, or nothing without any."""
    if not evaluation.subgroups:
        return None
    return section("subgroups", "Subgroups", *subgroup_tables(evaluation))


def subgroup_tables(evaluation: Evaluation) -> list[Markup]:
    """Return a table for each column that makes subgroups, and what differs."""
    tables = []
    for by in dict.fromkeys(row.by for row in evaluation.subgroups):
        rows = [row for row in evaluation.subgroups if row.by == by]
        apart = [f"{f.name} of {row.name}" for row in rows for f in row.figures if f.differs]
        names = [figure.name for figure in rows[0].figures]
        verdict = "No subgroup differs significantly from the other photos. That does not mean "
        verdict += "equal: the intervals say how far apart they may be."
        if apart:
            verdict = f"Significantly different from the other photos: {', '.join(apart)}."
        counts = ([row.name, f"{row.photos:,}", f"{row.groups:,}"] for row in rows)
        cells = [[*own, *map(_between, row.figures)] for own, row in zip(counts, rows, strict=True)]
        caption = (
            f"By {by}, with 95 % intervals; * differs from the other photos (score test over "
            "groups of photos, 5 %, corrected for all subgroups and figures by Holm's method)."
        )
        head = [by, "photos", "groups", *names]
        tables.append(table(head, cells, caption=caption, wide=True, pinned=True))
        tables.append(paragraph(verdict, class_="note" if apart else "muted"))
    return tables


def _between(figure: SubgroupFigure) -> str:
    mark = " *" if figure.differs and figure.value is not None else ""
    if figure.value is None or figure.low is None or figure.high is None:
        return f"{plain(figure.value, 3)}{mark}"
    return f"{plain(figure.value, 3)} ({plain(figure.low, 3)} to {plain(figure.high, 3)}){mark}"
