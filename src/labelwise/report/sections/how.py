"""How everything was computed: each number with its definition, bins, pooling and exclusions."""

from labelwise.evaluate import Evaluation
from labelwise.report.html import Markup, join, tag
from labelwise.report.words import paragraph, section

__all__ = ["how"]


def how(evaluation: Evaluation) -> Markup:
    """Return the section."""
    final = evaluation.final
    texts = {
        "Data": facts(evaluation),
        **{figure.name: figure.how for figure in evaluation.headline},
        "Ranking": evaluation.ranking.how,
        "Probabilities": _probabilities(evaluation),
        "Calibration": final.how if final else "",
        "Decisions": evaluation.sets.how if evaluation.sets else "",
        "Nothing here": evaluation.zero_label.how if evaluation.zero_label else "",
        "Search": evaluation.retrieval_how,
    }
    entries = [join(tag("dt", name), tag("dd", text)) for name, text in texts.items() if text]
    return section(
        "how",
        "How everything was computed",
        paragraph("Undefined is not zero: what has no value is left out of means and counted."),
        tag("dl", *entries, class_="how"),
    )


def facts(evaluation: Evaluation) -> str:
    """Return one sentence on what was evaluated."""
    data = evaluation.data
    unknown = f", {data.unknown:,} entries unknown and left out everywhere" if data.unknown else ""
    split = f" of the {data.split} split" if data.split else ""
    return (
        f"{data.rows:,} images{split}, {data.labels:,} labels, {data.present:,} labels present "
        f"({data.present / max(data.rows, 1):.2f} an image), {data.zero_label_rows:,} images "
        f"with none{unknown}."
    )


def _probabilities(evaluation: Evaluation) -> str:
    if evaluation.link is None and evaluation.calibrator is None:
        return "None: the scores only rank."
    text = f"From {evaluation.data.scores} by the link “{evaluation.link}”."
    if evaluation.calibrator:
        text += f" After calibration: {evaluation.calibrator}."
    return text
