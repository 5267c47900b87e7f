"""Nothing here: how images without any label are told from the others."""

from labelwise.evaluate import Evaluation, ZeroLabel
from labelwise.evaluate.zero_label import SHARES
from labelwise.report.charts import mirrored
from labelwise.report.html import Markup, tag
from labelwise.report.words import details, figure, paragraph, percent, plain, section, table

__all__ = ["zero_label"]

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
        return section("zero-label", "Nothing here", paragraph(text))
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
        "Nothing here",
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
    if not zero.quietness:
        return []
    header = ["", *(STAGES[row.stage] for row in zero.quietness)]
    cells = [["MMC", *(percent(row.mmc) for row in zero.quietness)]]
    for name, field in LOSSES.items():
        cells.append([name, *(plain(getattr(row, field)) for row in zero.quietness)])
    return [
        tag("h3", "The price of a low MMC"),
        paragraph(
            "MMC falls when all probabilities are shrunk, and so can be bought: what is lost shows "
            "in the log loss of the images with labels. Beside the model's own probabilities stand "
            "the calibrated ones, and what answering all images with the labels' shares gives."
        ),
        table(header, cells, caption="Lower is better in every row."),
    ]
