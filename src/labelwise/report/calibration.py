"""Do the probabilities mean what they say? Reliability before and after calibration."""

from labelwise.evaluation import Calibration, Curve, Evaluation
from labelwise.markup import (
    INFINITE,
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
from labelwise.report.charts import (
    AS_GIVEN,
    Stage,
    filled_bins,
    reliability_chart,
    reliability_thumbnail,
)

WORST = 12


def calibration(evaluation: Evaluation) -> Markup | None:
    """Return the section, or what is missing where the model only ranks."""
    parts = [stage for stage in (evaluation.before, evaluation.after) if stage is not None]
    if not parts:
        return section(
            "calibration",
            "Calibration",
            paragraph(
                "This model ranks labels and gives no probabilities. Calibrate it on validation "
                "data first; nothing is drawn here, because nothing was invented."
            ),
        )
    final = parts[-1]
    pooled = _figure(
        "All entries",
        [p.pooled for p in parts],
        parts,
        "Every known image–label pair is one entry.",
    )
    top = _figure(
        f"The {final.k} surest labels of each image",
        [p.top_k for p in parts],
        parts,
        "What a reader of the top answers sees; harder than the pool, which is mostly easy zeros.",
    )
    return section(
        "calibration",
        "Calibration",
        paragraph(_sentence(parts)),
        side_by_side(pooled, top, _comparison(parts)),
        _labels(parts),
    )


def _name(part: Calibration, parts: list[Calibration]) -> str:
    """Return the name of a stage; where nothing was calibrated, nothing is "before"."""
    return AS_GIVEN if len(parts) == 1 and part.stage == "before" else part.stage


def _stages(curves: list[Curve], parts: list[Calibration]) -> list[Stage]:
    classes = ["before", "after"] if len(parts) == 2 else ["after"]
    names = (_name(stage, parts) for stage in parts)
    return list(zip(classes, names, curves, strict=True))


def _figure(title: str, curves: list[Curve], parts: list[Calibration], text: str) -> Markup:
    chart = reliability_chart(_stages(curves, parts), title=f"Reliability: {title.lower()}")
    errors, numbers = [], []
    for stage, curve in zip(parts, curves, strict=True):
        name = _name(stage, parts)
        errors.append(
            f"{name.capitalize()}: ECE {percent(curve.ece, 2)}, ACE {percent(curve.ace, 2)}, "
            f"MCE {percent(curve.mce, 1)}"
        )
        numbers.append(_numbers(f"{title}, {name}", curve))
    words = f"{text} {'. '.join(errors)}."
    return figure(chart, f"{title}.", words, details("Numbers", join(*numbers)))


def _numbers(caption: str, curve: Curve) -> Markup:
    edges = curve.edges[:-1], curve.edges[1:]
    bins = *edges, curve.confidence, curve.frequency, curve.counts
    rows = [
        [f"{low:.2f} to {high:.2f}", percent(confidence), percent(seen), f"{count:,}"]
        for low, high, confidence, seen, count in zip(*bins, strict=True)
    ]
    return table(["bin", "mean probability", "observed share", "entries"], rows, caption=caption)


def _sentence(parts: list[Calibration]) -> str:
    final = parts[-1].pooled
    busiest = [bin for bin in filled_bins(final) if bin[0] >= 0.5]
    text = "On the diagonal a probability means what it says."
    if busiest:
        confidence, seen, count = max(busiest, key=lambda b: b[2])
        text += (
            f" Of the {count:,} entries given about {chance(confidence)}, {chance(seen)} were "
            "truly present."
        )
    if len(parts) == 2:
        first = parts[0].pooled
        text += (
            f" The expected calibration error over all entries went from {percent(first.ece, 2)} "
            f"before calibration to {percent(final.ece, 2)} after it."
        )
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
    return table(
        ["", *(_name(stage, parts) for stage in parts)],
        [[name, *values] for name, values in lines],
        caption=f"Calibration errors in {bins} equal-width bins; lower is better unless stated.",
    )


def _labels(parts: list[Calibration]) -> Markup | None:
    final = parts[-1]
    if not final.per_label:
        return None
    worst = sorted(final.per_label, key=lambda name: -(final.per_label[name].ece or 0.0))[:WORST]
    thumbs = []
    for name in worst:
        curves = [p.per_label[name] for p in parts if name in p.per_label]
        chart = reliability_thumbnail(
            _stages(curves, parts[-len(curves) :]), title=f"Reliability of {name}"
        )
        curve = final.per_label[name]
        text = f"ECE {percent(curve.ece, 2)}, n {sum(curve.counts):,}"
        thumbs.append(tag("figure", chart, tag("figcaption", tag("b", name), text)))
    return join(
        tag("h3", "Labels, worst calibrated first"),
        paragraph(f"The {len(worst)} labels with the largest ECE of their own.", class_="muted"),
        tag("div", *thumbs, class_="thumbs"),
    )
