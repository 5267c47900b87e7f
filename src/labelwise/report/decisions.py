"""Decisions: the label sets of the rule, and how images without any label are told apart."""

from labelwise.evaluation import Evaluation, Sets, ZeroLabel
from labelwise.evaluation.parts import SHARES
from labelwise.markup import Markup, details, figure, paragraph, percent, plain, section, table, tag
from labelwise.report.charts import grouped_bars, mirrored

CELLS = 12


def decisions(evaluation: Evaluation) -> Markup | None:
    """Return the section, or nothing where no rule was given."""
    sets = evaluation.sets
    if sets is None:
        return None
    lines = [
        ("F1, mean over labels (macro)", sets.macro_f1),
        ("F1, all entries (micro, OF1)", sets.micro_f1),
        ("F1, mean over images", sets.sample_f1),
        ("CF1 (mean precision, mean recall)", sets.cf1),
        ("Entries wrong (Hamming loss)", sets.hamming),
        ("Images exactly right", sets.subset_accuracy),
    ]
    return section(
        "decisions",
        "Decisions",
        paragraph(
            f"Rule: {sets.rule}. It gives {sets.mean_size:.2f} labels to an image on average; "
            f"{_truth(sets)}."
        ),
        tag(
            "div",
            _sizes(sets),
            _thresholds(evaluation),
            table(
                ["", "value"],
                [[name, percent(value, 2)] for name, value in lines],
                caption="Sets of the rule against the true sets.",
            ),
            class_="figures",
        ),
    )


def _truth(sets: Sets) -> str:
    """Return how many labels an image truly has, in words."""
    if sets.true_size is not None:
        return f"the truth has {sets.true_size:.2f}"
    known, images = sum(sets.true_sizes), sum(sets.sizes)
    return (
        "how many it should give is not known: all labels are known of "
        f"{known:,} of {images:,} images"
    )


def _sizes(sets: Sets) -> Markup:
    names, chosen, true = _folded(sets)
    chart = grouped_bars(
        [("absent", "true", true), ("after", "decided", chosen)],
        names,
        title="Labels per image",
        x="labels per image",
    )
    numbers = table(
        ["labels", "true", "decided"],
        [[n, f"{t:,}", f"{c:,}"] for n, t, c in zip(names, true, chosen, strict=True)],
        caption="Images by number of labels",
    )
    return figure(
        chart,
        "Labels per image.",
        "How many labels the rule gives and how many there are; 0 is an image with none.",
        details("Numbers", numbers),
    )


def _folded(sets: Sets) -> tuple[list[str], list[int], list[int]]:
    cells = max(len(sets.sizes), len(sets.true_sizes))
    pairs = [list(counts) + [0] * (cells - len(counts)) for counts in (sets.sizes, sets.true_sizes)]
    names = [str(n) for n in range(cells)]
    if cells > CELLS:
        names = [*names[: CELLS - 1], f"{CELLS - 1}+"]
        pairs = [[*counts[: CELLS - 1], sum(counts[CELLS - 1 :])] for counts in pairs]
    return names, pairs[0], pairs[1]


def _thresholds(evaluation: Evaluation) -> Markup | None:
    values = [row.threshold for row in evaluation.rows if row.threshold is not None]
    if len(set(values)) < 2:
        return None
    cells = [0] * 10
    for value in values:
        cells[min(max(int(value * 10), 0), 9)] += 1
    chart = grouped_bars(
        [("after", "labels", cells)],
        [f".{cell}" for cell in range(10)],
        title="Thresholds of the labels",
        x="threshold, cells of 0.1",
        y="labels",
    )
    return figure(
        chart,
        "Thresholds.",
        f"From {min(values):.3f} to {max(values):.3f}; each label's own is in the table of labels.",
    )


ZERO_LABEL = "Images with no label"
STAGES = {"before": "own", "after": "calibrated", SHARES: "shares"}
LOSSES = {
    "Log loss, with labels": "log_loss_in",
    "Log loss, without": "log_loss_out",
    "Brier, with labels": "brier_in",
    "Brier, without": "brier_out",
}


def zero_label(evaluation: Evaluation) -> Markup | None:
    """Return the section; a table without zero-label images gets one honest sentence."""
    zero = evaluation.zero_label
    if zero is None:
        return None
    if zero.rows == 0:
        text = "No image here is known to carry none of the labels, so nothing can be measured."
        return section("zero-label", ZERO_LABEL, paragraph(text))
    chart = mirrored(
        ("after", "with labels", zero.inside),
        ("before", "without", zero.outside),
        zero.edges,
        title="Largest probability of an image",
        x="largest probability of the image",
    )
    cells = [
        [f"{low:.2f} to {high:.2f}", f"{inside:,}", f"{outside:,}"]
        for low, high, inside, outside in zip(
            zero.edges, zero.edges[1:], zero.inside, zero.outside, strict=False
        )
    ]
    numbers = table(["largest p", "with labels", "without"], cells, caption="Images")
    lines = [
        ("Images known to carry no label", f"{zero.rows:,} ({percent(zero.share)})"),
        ("False alarms: the rule gives one of them a label", percent(zero.false_alarms)),
        ("AUROC of “nothing here”, product of 1 − p", plain(zero.auroc_nothing)),
        ("AUROC of the largest p", plain(zero.auroc_max)),
        ("False positives at 95% true positives, largest p", percent(zero.fpr95)),
        ("Mean largest p on them (MMC)", percent(zero.mmc)),
    ]
    alarm = ""
    if zero.false_alarms is not None:
        alarm = f" On {percent(zero.false_alarms)} of these the rule raises a false alarm."
    return section(
        "zero-label",
        ZERO_LABEL,
        paragraph(
            f"{zero.rows:,} images ({percent(zero.share)}) were reviewed and carry none of the "
            f"labels.{alarm}"
        ),
        tag(
            "div",
            figure(
                chart,
                "Largest probability.",
                "Above the line images with labels, below it those without, each on its own scale. "
                "Apart is good.",
                details("Numbers", numbers),
            ),
            table(["", "value"], [list(line) for line in lines], caption="Images without labels."),
            class_="figures",
        ),
        *_price(zero),
    )


def _price(zero: ZeroLabel) -> list[Markup]:
    if not zero.by_stage:
        return []
    header = ["", *(STAGES.get(row.stage, row.stage) for row in zero.by_stage)]
    cells = [["MMC", *(percent(row.mmc) for row in zero.by_stage)]]
    for name, field in LOSSES.items():
        cells.append([name, *(plain(getattr(row, field)) for row in zero.by_stage)])
    return [
        tag("h3", "The price of a low MMC"),
        paragraph(
            "A low MMC, the mean largest probability on images with no label, can be had by "
            "shrinking all probabilities; the log loss of the images with labels shows what that "
            "costs. Own: the model's probabilities. Calibrated: those after calibration. Shares: "
            "every image is answered with how often each label occurs."
        ),
        table(header, cells, caption="Lower is better in every row."),
    ]
