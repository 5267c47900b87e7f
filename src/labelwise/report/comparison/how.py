"""How everything was computed: the rules of the comparison, and each measure in words."""

from labelwise.experiments.comparison import Comparison
from labelwise.experiments.measures import MEASURES
from labelwise.report.html import Markup, join, tag
from labelwise.report.words import paragraph, section

__all__ = ["GLOSS", "how"]

_STAGES = {"before": "own link", "after": "the same fit for all"}
_ERRORS = {
    "ECE": "Mean gap of probability and share present, weighted by entries",
    "ACE": "Mean gap of probability and share present, bins alike",
    "MCE": "Largest gap of probability and share present",
}
_SCORES = {
    "log loss": "Mean log loss in nats an entry",
    "Brier": "Mean squared error of the probabilities",
}
_PARTS = {"": "", " IN": ", images with labels", " OUT": ", images without"}

# What a measure is, in a few words.
GLOSS: dict[str, str] = {
    "mAP@class": "Average precision, mean over labels",
    "mAP@sample": "Average precision, mean over images",
    "macro F1": "F1, mean over labels, one threshold chosen on validation",
    **{
        f"{name} {stage}": f"{text}; {words}"
        for name, text in _ERRORS.items()
        for stage, words in _STAGES.items()
    },
    **{
        f"{name}{part} {stage}": f"{text}{where}; {words}"
        for name, text in _SCORES.items()
        for part, where in _PARTS.items()
        for stage, words in _STAGES.items()
    },
    "top accuracy": "Images with labels whose surest label is right",
    "zero-label AUROC": "Chance that an image with labels has a larger top probability than one "
    "without",
    "zero-label MMC": "Mean largest probability on images without labels",
    **{f"retrieval n={n}": f"Mean average precision of queries of length {n}" for n in (1, 2, 3)},
    "seconds": "Time of one run, as this machine was loaded",
    "host MB": "Largest memory of one run's process",
    "GPU MB": "Largest memory of one run on the GPU",
}

RULES = {
    "Data": "All methods see the same training, validation and test images; all figures here are "
    "of the test images. Where the data has no validation split, a tenth of the training "
    "images is taken for it, once.",
    "Seeds": "Runs of one seed share data, order and start, so methods are compared seed by seed.",
    "Interval": "Mean ± t(n − 1, 97.5 %) s / √n over the n seeds. It holds what training chance "
    "does, not which images happened to be in the test split. One seed has no interval.",
    "Told apart": "The paired differences of every method to the best one, held together against "
    "5 % by Holm's rule, within one measure. Not told apart does not mean equal.",
    "Before and after": "Before: the method's own link from logits to probabilities; a method "
    "that only ranks has no such figures. After: the same shrunk per-label Platt fit on "
    "validation for every method. Zero-label figures and retrieval read the own link, or the "
    "fitted one where there is none.",
    "Calibration errors": "Equal-width bins over all known entries as one pool; per bin the gap "
    "between the mean probability and the share truly present. ECE weighs gaps by entries, ACE "
    "is the plain mean over non-empty bins, MCE the largest.",
    "Log loss and Brier": "Means over entries, not clipped: a certain and wrong answer has "
    "infinite log loss. IN are images with a label present or unknown, OUT those reviewed and "
    "without any.",
    "Macro F1": "One threshold for all labels, with the best F1 on validation, on the fitted "
    "probabilities.",
    "Retrieval": "A query wants some labels and not others; images are ranked by the joint "
    "probability, labels taken as independent given the image. All queries of a length, or a "
    "seeded sample of them, the same for every method.",
    "Undefined": "What has no value, or an infinite one, is left out of means, and shows as a dash "
    "where nothing is left.",
}


def how(comparison: Comparison, tries: int | None = None) -> Markup:
    """Return the section; ``tries`` is how many settings of each method were tried."""
    texts = {"Tries": tuned(tries), **RULES}
    shown = [name for name in MEASURES if any(comparison.column(name).values())]
    entries = [join(tag("dt", name), tag("dd", text)) for name, text in texts.items() if text]
    return section(
        "how",
        "How everything was computed",
        tag("dl", *entries, class_="how"),
        tag("h3", "The measures"),
        paragraph("An arrow up: higher is better; down: lower is.", class_="muted"),
        tag("dl", *(_measure(name) for name in shown), class_="how"),
    )


def tuned(tries: int | None) -> str:
    """Return a sentence on how the settings were chosen, nothing where that is not known."""
    if tries is None:
        return ""
    if tries < 2:
        return "Every method was trained with the recipe as given; nothing was tuned."
    return (
        f"Each method had {tries} tries on the first seed, the recipe as given among them; the "
        "best on validation was trained on every seed."
    )


def _measure(name: str) -> Markup:
    arrow = "↑" if MEASURES[name].higher_is_better else "↓"
    return join(tag("dt", f"{name} {arrow}"), tag("dd", f"{GLOSS[name]}."))
