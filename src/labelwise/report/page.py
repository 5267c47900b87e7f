"""The report of one evaluation: its parts in the order in which they are read, and its file.

Here are also the parts that need no chart of their own: the headline, the training curves and how
everything was computed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelwise.base.files import write_text
from labelwise.base.markup import (
    INFINITE,
    Markup,
    Part,
    details,
    document,
    figure,
    join,
    paragraph,
    percent,
    plain,
    section,
    side_by_side,
    table,
    tag,
    trusted,
)
from labelwise.base.text import counted
from labelwise.evaluation import Evaluation, Figure, Sets
from labelwise.evaluation.mergeable import SHARES
from labelwise.evaluation.verdict import verdict
from labelwise.report.charts import Series, grouped_bars, line_chart
from labelwise.report.examples import ExampleGroup, example_section, opening_photos
from labelwise.report.labels import calibration, labels, search, subgroups
from labelwise.report.labels import curves as label_curves

CELLS = 12
TILES = 4  # figures that are shown before anything is unfolded


def decisions(evaluation: Evaluation) -> Markup | None:
    """Return the section, or nothing where no rule was given."""
    sets = evaluation.sets
    if sets is None:
        return None
    truth = "how many it should give is not known: all labels are known of "
    truth += f"{sum(sets.true_sizes):,} of {sum(sets.sizes):,} images"
    if sets.true_size is not None:
        truth = f"the truth has {sets.true_size:.2f}"
    lines = [
        ("F1, mean over labels (macro)", sets.macro_f1),
        ("F1, all entries (micro, OF1)", sets.micro_f1),
        ("F1, mean over images", sets.sample_f1),
        ("CF1 (mean precision, mean recall)", sets.cf1),
        ("Entries wrong (Hamming loss)", sets.hamming),
        ("Images exactly right", sets.subset_accuracy),
    ]
    words = f"Rule: {sets.rule}. It gives {sets.mean_size:.2f} labels to an image on average"
    rows = [[name, percent(value, 2)] for name, value in lines]
    measured = table(["", "value"], rows, caption="Sets of the rule against the true sets.")
    shown = side_by_side(_sizes(sets), _thresholds(evaluation), measured)
    return section("decisions", "Decisions", paragraph(f"{words}; {truth}."), shown)


def _sizes(sets: Sets) -> Markup:
    cells = max(len(sets.sizes), len(sets.true_sizes))
    chosen, true = (
        list(counts) + [0] * (cells - len(counts)) for counts in (sets.sizes, sets.true_sizes)
    )
    names = [str(n) for n in range(cells)]
    if cells > CELLS:
        last = CELLS - 1
        names = [*names[:last], f"{last}+"]
        chosen, true = ([*counts[:last], sum(counts[last:])] for counts in (chosen, true))
    bars = [("absent", "true", true), ("after", "decided", chosen)]
    chart = grouped_bars(bars, names, title="Labels per image", x="labels per image")
    rows = [[n, f"{t:,}", f"{c:,}"] for n, t, c in zip(names, true, chosen, strict=True)]
    numbers = table(["labels", "true", "decided"], rows, caption="Images by number of labels")
    words = "How many labels the rule gives and how many there are; 0 is an image with none."
    return figure(chart, "Labels per image.", words, details("Numbers", numbers))


def _thresholds(evaluation: Evaluation) -> Markup | None:
    values = [row.threshold for row in evaluation.rows if row.threshold is not None]
    if len(set(values)) < 2:
        return None
    cells = [0] * 10
    for value in values:
        cells[min(max(int(value * 10), 0), 9)] += 1
    names, x = [f".{cell}" for cell in range(10)], "threshold, cells of 0.1"
    bars = [("after", "labels", cells)]
    chart = grouped_bars(bars, names, title="Thresholds of the labels", x=x, y="labels")
    words = f"From {min(values):.3f} to {max(values):.3f}"
    return figure(chart, "Thresholds.", f"{words}; each label's own is in the table of labels.")


ZERO_LABEL = "Images with no label"
STAGES = {"before": "own", "after": "calibrated", SHARES: "shares"}
LOSSES = {"Log loss, with labels": "log_loss_in", "Log loss, without": "log_loss_out"}
LOSSES |= {"Brier, with labels": "brier_in", "Brier, without": "brier_out"}
PRICE = (
    "A low MMC, the mean largest probability on images with no label, can be had by "
    "shrinking all probabilities; the log loss of the images with labels shows what that "
    "costs. Own: the model's probabilities. Calibrated: those after calibration. Shares: "
    "every image is answered with how often each label occurs."
)


def _zero_label(evaluation: Evaluation) -> Markup | None:
    zero = evaluation.zero_label
    if zero is None:
        return None
    if zero.rows == 0:
        text = "No image here is known to carry none of the labels, so nothing can be measured."
        return section("zero-label", ZERO_LABEL, paragraph(text))
    shares = [
        [round(100 * count / max(sum(counts), 1), 1) for count in counts]
        for counts in (zero.inside, zero.outside)
    ]
    bars = [("after", "with labels", shares[0]), ("before", "without", shares[1])]
    names, x = [f"{low:.2f}" for low in zero.edges[:-1]], "largest probability of the image, from"
    title, y = "Largest probability of an image", "per cent of the images"
    chart = grouped_bars(bars, names, title=title, x=x, y=y)
    columns = zip(zero.edges, zero.edges[1:], zero.inside, zero.outside, strict=False)
    cells = [[f"{low:.2f} to {high:.2f}", f"{i:,}", f"{o:,}"] for low, high, i, o in columns]
    numbers = table(["largest p", "with labels", "without"], cells, caption="Images")
    lines = [
        ("Images known to carry no label", f"{zero.rows:,} ({percent(zero.share)})"),
        ("False alarms: the rule gives one of them a label", percent(zero.false_alarms)),
        ("AUROC of “nothing here”, product of 1 − p", plain(zero.auroc_nothing)),
        ("AUROC of the largest p", plain(zero.auroc_max)),
        ("False positives at 95% true positives, largest p", percent(zero.fpr95)),
        ("Mean largest p on them (MMC)", percent(zero.mmc)),
    ]
    words = f"{zero.rows:,} images ({percent(zero.share)}) were reviewed and carry none"
    words += " of the labels."
    if zero.false_alarms is not None:
        words += f" On {percent(zero.false_alarms)} of these the rule raises a false alarm."
    apart = "Images with labels beside those without. Apart is good."
    drawn = figure(chart, "Largest probability.", apart, details("Numbers", numbers))
    measured = table(["", "value"], lines, caption="Images without labels.")
    parts = [paragraph(words), side_by_side(drawn, measured)]
    if zero.by_stage:
        header = ["", *(STAGES.get(row.stage, row.stage) for row in zero.by_stage)]
        scores = [["MMC", *(percent(row.mmc) for row in zero.by_stage)]]
        for name, field in LOSSES.items():
            scores.append([name, *(plain(getattr(row, field)) for row in zero.by_stage)])
        parts += [tag("h3", "The price of a low MMC"), paragraph(PRICE)]
        parts.append(table(header, scores, caption="Lower is better in every row."))
    return section("zero-label", ZERO_LABEL, *parts)


History = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]
POINTS = 400
CHARTS = 9
LARGEST = 1e15  # of numbers that are drawn; NaN and infinity are not below it
CLOCK = "step"
STYLES = ("after", "before", "present", "absent")
QUIET = frozenset({CLOCK, "epoch", "epoch_loss", "images_per_second", "seconds", "best"})
GLOSSES = {  # what a headline figure tells, by how its name begins
    "mAP over labels": "do images with a label rank above those without it?",
    "mAP over images": "do an image's labels rank above the others?",
    "ECE, all": "mean gap between probability and truth",
    "ECE, top": "the same, for each image's surest labels",
    "Log loss": "what unsure and wrong probabilities cost",
    "Brier": "mean squared error of the probabilities",
    "F1": "chosen labels: how many are right, and found",
    "False alarms": "images with no label that are given one",
}
NAMES = {  # key of a record: chart, line
    "loss": ("Loss", "training"),
    "val_map": ("Validation mAP", "over labels"),
    "val_map_sample": ("Validation mAP", "over images"),
    "val_log_loss": ("Validation log loss", "validation"),
    "link.log_normalizer": ("Normaliser, log C", "log C of the quasibinary link"),
    "lr": ("Learning rate", "learning rate"),
}


def write_report(
    evaluation: Evaluation,
    path: str | Path,
    *,
    title: str = "How well it works",
    examples: Sequence[ExampleGroup] = (),
    history: History | None = None,
    origin: Mapping[str, str] | None = None,
) -> Path:
    """Write the report to ``path`` and return it.

    ``history`` holds the records of ``metrics.jsonl``; ``examples`` comes from
    :func:`choose_examples`; ``origin`` names what was measured (method, data, command, ...).
    """
    text = page(evaluation, title=title, examples=examples, history=history, origin=origin)
    write_text(Path(path), text)
    return Path(path)


def page(
    evaluation: Evaluation,
    *,
    title: str,
    examples: Sequence[ExampleGroup] = (),
    history: History | None = None,
    origin: Mapping[str, str] | None = None,
) -> str:
    """Return the page: verdict, photos and four figures first, everything else folded."""
    parts: list[Part] = [
        ("glance", "At a glance", glance(evaluation, origin or {}, opening_photos(examples)))
    ]
    for name, word, content in (
        ("examples", "Examples", example_section(examples)),
        ("calibration", "Calibration", calibration(evaluation)),
        ("decisions", "Decisions", decisions(evaluation)),
        ("zero-label", "No label", _zero_label(evaluation)),
        ("search", "Search", search(evaluation)),
        ("labels", "Labels", labels(evaluation)),
        ("curves", "Curves", label_curves(evaluation)),
        ("subgroups", "Subgroups", subgroups(evaluation)),
        ("training", "Training", _training(history)),
        ("how", "How", how(evaluation)),
    ):
        if content is not None:  # folded: it opens at a click on its heading
            before, heading, after = map(trusted, re.split(r"(<h2.*?</h2>)", content, maxsplit=1))
            folded = tag("details", tag("summary", heading), before, after, class_="fold")
            parts.append((name, word, folded))
    return document(title, facts(evaluation), parts)


def glance(
    evaluation: Evaluation, origin: Mapping[str, str], photos: Sequence[Markup] = ()
) -> Markup:
    """Return verdict, photos, four figures; below a fold the others and what was measured."""
    judged = verdict(evaluation)
    tiles = [_tile(figure, evaluation) for figure in evaluation.headline]
    word = tag("strong", judged.short.capitalize(), class_="word")
    words = f" {judged.sentences}".replace("`", "")
    parts = [tag("p", word, words, class_="verdict"), *photos]
    parts.append(tag("ul", *tiles[:TILES], class_="tiles"))
    if any(figure.low is not None for figure in evaluation.headline):
        words = "Below each number: its 95 % interval over draws of such images. "
        link = tag("a", "How everything was computed", href="#how")
        parts.append(paragraph(words, link, ".", class_="small muted"))
    if len(tiles) > TILES:
        parts.append(details("More figures", tag("ul", *tiles[TILES:], class_="tiles")))
    parts += [paragraph(note, class_="note") for note in evaluation.notes]
    if origin:
        facts = [tag("div", tag("dt", name), tag("dd", text)) for name, text in origin.items()]
        parts.append(details("What was measured", tag("dl", *facts, class_="origin")))
    return section("glance", "At a glance", *parts)


def show(figure: Figure, value: float | None) -> str:
    """Return one of a figure's values the way the figure is written."""
    fine = figure.value is not None and figure.value < 0.1
    return percent(value, 2 if fine else 1) if figure.percent else plain(value)


def _tile(figure: Figure, evaluation: Evaluation) -> Markup:
    arrow = {"higher": "higher is better", "lower": "lower is better"}.get(figure.better, "")
    value = INFINITE if evaluation.is_infinite(figure) else show(figure, figure.value)
    gloss = next((text for start, text in GLOSSES.items() if figure.name.startswith(start)), "")
    extent = None
    if figure.low is not None and figure.high is not None:
        extent = f"{show(figure, figure.low)} to {show(figure, figure.high)}"
    return tag(
        "li",
        tag("span", figure.name, class_="what"),
        tag("span", value, class_="number"),
        tag("span", extent or figure.why_no_interval or " ", class_="range"),
        tag("span", arrow, class_="range"),
        tag("span", gloss, class_="gloss") if gloss else None,
        class_="tile",
        title=figure.how,
    )


def _training(history: History | None) -> Markup | None:
    charts = [_learning(record["learning"]) for record in history or () if "learning" in record]
    for title, lines in list(curves(history or ()).items())[:CHARTS]:
        series = [
            Series(style, name, [x for x, _ in points], [y for _, y in points])
            for style, (name, points) in zip(STYLES, lines.items(), strict=False)
        ]
        chart = line_chart(series, title=f"{title} over training", x="step", y=title)
        ends = "; ".join(f"{name} ends at {points[-1][1]:.4g}" for name, points in lines.items())
        charts.append(figure(chart, f"{title}.", f"{ends}."))
    if not charts:
        return None
    return section("training", "Training", side_by_side(*charts))


def _learning(curve: Mapping[str, Any]) -> Markup:
    """Return the mAP by number of photos, the last of which are not there yet, and what it says."""
    points = curve["points"]
    if not points:
        return paragraph(curve["sentence"])
    x, y, errors = ([point[key] for point in points] for key in ("photos", "map", "error"))
    there = Series("after", "your photos", x[:-1], y[:-1], errors[:-1])
    ahead = Series("before", "twice as many", x[-2:], y[-2:], [0.0, errors[-1]])
    chart = line_chart([there, ahead], title="mAP by number of photos", x="photos", y="mAP")
    return figure(chart, "How much more photos would help.", curve["sentence"])


def curves(history: History) -> dict[str, dict[str, Points]]:
    """Return the lines of every chart; known quantities first, then what else was logged."""
    curves: dict[str, dict[str, Points]] = {chart: {} for chart, _ in NAMES.values()}
    for record in history:
        if not _is_number(record.get(CLOCK)):
            continue
        for key, value in record.items():
            if key not in QUIET and _is_number(value):
                chart, line = NAMES.get(key, (key, key))
                curves.setdefault(chart, {}).setdefault(line, []).append((record[CLOCK], value))
    for chart, lines in curves.items():
        curves[chart] = {
            line: [*points[: -1 : -(-len(points) // POINTS)], points[-1]]
            for line, points in lines.items()
            if len(points) > 1
        }
    return {chart: lines for chart, lines in curves.items() if lines}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def how(evaluation: Evaluation) -> Markup:
    """Return the section."""
    final, probabilities = evaluation.final, "None: the scores only rank."
    if evaluation.link is not None or evaluation.calibrator is not None:
        probabilities = f"From {evaluation.data.scores} by the link “{evaluation.link}”."
    if evaluation.calibrator:
        probabilities += f" After calibration: {evaluation.calibrator}."
    texts = {
        "Data": facts(evaluation),
        **{figure.name: figure.how for figure in evaluation.headline},
        "Ranking": evaluation.ranking.how,
        "Probabilities": probabilities,
        "Calibration": final.how if final else "",
        "Decisions": evaluation.sets.how if evaluation.sets else "",
        "Images with no label": evaluation.zero_label.how if evaluation.zero_label else "",
        "Search": evaluation.retrieval_how,
    }
    entries = [join(tag("dt", name), tag("dd", text)) for name, text in texts.items() if text]
    words = "Undefined is not zero: what has no value is left out of means and counted."
    listed = tag("dl", *entries, class_="how")
    return section("how", "How everything was computed", paragraph(words), listed)


def facts(evaluation: Evaluation) -> str:
    """Return one sentence on what was evaluated."""
    data = evaluation.data
    unknown = f", {data.unknown:,} entries unknown and left out everywhere" if data.unknown else ""
    split = f" of the {data.split} split" if data.split else ""
    each = f"{data.present / max(data.rows, 1):.2f} per image"
    present = f"{counted(data.present, 'label')} present ({each})"
    size = f"{counted(data.rows, 'image')}{split}, {counted(data.labels, 'label')}"
    return f"{size}, {present}, {counted(data.zero_label_rows, 'image')} with none{unknown}."
