"""Decisions: the label sets of the rule, how many labels an image gets, and the thresholds."""

from labelwise.evaluate import Evaluation, Sets
from labelwise.report.charts import grouped_bars
from labelwise.report.html import Markup, tag
from labelwise.report.words import details, figure, paragraph, percent, section, table

__all__ = ["decisions"]

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
            f"the truth has {sets.mean_true_size:.2f}."
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
