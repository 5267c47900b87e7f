"""Columns: the papers' own figures, computed from one run as each paper defines them.

All in per cent except AUROC. Every function takes the outcome of a run and returns figures by
printed name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.calibration import expect_zero_share, temperature
from labelwise.decide import average_k
from labelwise.links import Link, Softmax
from labelwise.metrics import (
    AverageKAccuracy,
    average_k_accuracy,
    average_precision,
    by_shot,
    max_confidence,
    reliability,
    separation_auroc,
    top_accuracy,
    top_k_scores,
    top_k_sets,
    zero_label_rows,
)
from labelwise.models.run_folder import RunFolder
from labelwise.objectives import PhiLink, QuasibinaryLink
from labelwise.papers.measures import FinishedRun, probability_figures
from labelwise.predictions import Predictions
from labelwise.retrieval import retrieval_map


def top_error(run: FinishedRun) -> dict[str, float]:
    """Table I of quasibinary: the share of images whose most confident label is wrong."""
    test = run.test
    return {"error": 100 * (1 - top_accuracy(test.logits, test.labels).value)}


SETTLED = 0.25  # the last part of training, over which the variance of C is taken


def normaliser_figures(run: FinishedRun) -> dict[str, float]:
    """Return the error, the share of test entries with q > 1 (per cent), C, and its variance."""
    link = run.test.link
    if not isinstance(link, QuasibinaryLink):
        raise TypeError(f"these figures are of the quasibinary link, got {type(link).__name__}")
    above = run.test.logits.astype(np.float64) > float(link.log_normalizer)
    figures = {
        **top_error(run),
        "q > 1": 100 * float(above.mean()),
        "C": float(np.exp(float(link.log_normalizer))),
    }
    journal = RunFolder(run.folder).journal.read()
    kept = [line["link.log_normalizer"] for line in journal if "link.log_normalizer" in line]
    last = np.exp(np.asarray(kept[int(len(kept) * (1 - SETTLED)) :], dtype=np.float64))
    if len(last) > 1:
        figures["variance of C"] = float(last.var())
    return figures


def in_and_out(run: FinishedRun) -> dict[str, float]:
    """Table II of quasibinary, and the proper scores that a shrinking of all p would worsen."""
    return _in_and_out(link_of(run), run.test)


def in_and_out_expecting(share: float) -> Callable[[FinishedRun], dict[str, float]]:
    """Return the same for probabilities that expect this share of images to have no label."""

    def figures(run: FinishedRun) -> dict[str, float]:
        link = expect_zero_share(link_of(run), run.held_out.labels, share)
        return _in_and_out(link, run.test)

    return figures


def _in_and_out(link: Link, test: Predictions) -> dict[str, float]:
    probs = link(test.logits.astype(np.float64))
    out = zero_label_rows(test.labels)
    confidence = max_confidence(probs)
    scores = probability_figures(link, test)
    return {
        "IN accuracy": 100 * top_accuracy(test.logits[~out], test.labels[~out]).value,
        "OUT MMC": 100 * float(confidence[out].mean()),
        "AUROC": separation_auroc(confidence[~out], confidence[out]),
        **{f"log loss{side}": scores[f"log loss{side}"] for side in (" IN", " OUT")},
        **{f"Brier{side}": scores[f"Brier{side}"] for side in (" IN", " OUT")},
        "log loss": scores["log loss"],
        "Brier": scores["Brier"],
        "ECE": 100 * scores["ECE"],
    }


def top_four(run: FinishedRun) -> dict[str, float]:
    """Table III of quasibinary: macro F1 and ECE of the four most confident labels, 10 bins."""
    return _top_four(link_of(run), run.test)


def top_four_after_temperature(run: FinishedRun) -> dict[str, float]:
    """The same after a temperature fitted on validation."""
    val = run.held_out
    return _top_four(temperature(val.logits, val.labels, val.link), run.test)


def top_four_as_softmax(run: FinishedRun) -> dict[str, float]:
    """The same of a softmax of the logits, however they were trained."""
    return _top_four(Softmax(), run.test)


def top_four_normalised(run: FinishedRun) -> dict[str, float]:
    """The same of the probabilities divided by their sum over the labels of an image."""
    probs = link_of(run)(run.test.logits.astype(np.float64))
    return _top_four_of(probs / probs.sum(1, keepdims=True), run.test)


def _top_four(link: Link, test: Predictions) -> dict[str, float]:
    return _top_four_of(link(test.logits.astype(np.float64)), test)


def _top_four_of(probs: NDArray[Any], test: Predictions) -> dict[str, float]:
    chosen = top_k_sets(probs, 4)
    return {
        "F1": 100 * top_k_scores(probs, test.labels, test.observed, k=4).macro_f1,
        "ECE": 100 * float(reliability(probs, test.labels, test.observed, where=chosen).ece()),
    }


def ranked(run: FinishedRun) -> dict[str, float]:
    """Return mAP over labels and over images."""
    test = run.test
    by_label = average_precision(test.logits, test.labels, test.observed)
    by_image = average_precision(test.logits, test.labels, test.observed, by="image")
    return {"mAP@class": 100 * by_label.value, "mAP@sample": 100 * by_image.value}


def ranked_and_calibrated(run: FinishedRun) -> dict[str, float]:
    """Tables 3 and 4 of SPA: mAP, and ACE and MCE over all entries, 10 bins of equal width."""
    return _ranked_and_calibrated(link_of(run), run.test)


def ranked_and_calibrated_through(
    focusing: Mapping[str, Any],
) -> Callable[[FinishedRun], dict[str, float]]:
    """Return the same of the logits read through the map of this focusing, not the run's own."""
    link = PhiLink(**focusing)
    return lambda run: _ranked_and_calibrated(link, run.test)


def _ranked_and_calibrated(link: Link, test: Predictions) -> dict[str, float]:
    probs = link(test.logits.astype(np.float64))
    figures = probability_figures(link, test)
    # phi with a margin ties what it sets to 0, so the ranking is that of the probabilities.
    by_label = average_precision(probs, test.labels, test.observed)
    by_image = average_precision(probs, test.labels, test.observed, by="image")
    return {
        "mAP@class": 100 * by_label.value,
        "mAP@sample": 100 * by_image.value,
        "ACE": 100 * figures["ACE"],
        "MCE": 100 * figures["MCE"],
        "log loss": figures["log loss"],
    }


def retrieval_by_length(run: FinishedRun) -> dict[str, float]:
    """Figure 3 of SPA: mAP over queries of n wanted and unwanted labels."""
    test = run.test
    log_p, log_q = link_of(run).log_probs(test.logits.astype(np.float64))
    points = retrieval_map(log_p, log_q, test.labels, test.observed, longest=5)
    return {f"n={point.length}": 100 * point.value for point in points}


def average_sets(k: int) -> Callable[[FinishedRun], dict[str, float]]:
    """Return the figures of Tables 1 and 2 of average-K: sets of ``k`` labels on average.

    The threshold is chosen on validation. As in the paper the scores are softmaxes of the logits,
    over all images and over classes by their number of training images; the same of the method's
    own probabilities stands beside them, and how many labels the sets hold on test.
    """

    def figures(run: FinishedRun) -> dict[str, float]:
        figures: dict[str, float] = {}
        for words, link in (("", Softmax()), (", own scores", link_of(run))):
            if words and isinstance(link, Softmax):
                continue
            accuracy = _accuracy_of_sets(run, link, k)
            groups = by_shot(accuracy.per_label.items, run.train.labels.sum(0))
            figures[f"overall{words}"] = 100 * accuracy.per_image.value
            figures |= {
                f"{shot}{words}": 100 * mean.value
                for shot, mean in groups.items()
                if mean.num_defined
            }
            figures[f"set size{words}"] = accuracy.mean_size
        return figures

    return figures


def voc_precision(run: FinishedRun) -> dict[str, float]:
    """Query2Label's mAP, whose precision is interpolated."""
    test = run.test
    mean = average_precision(test.logits, test.labels, test.observed, variant="voc")
    return {"mAP@class (VOC)": 100 * mean.value}


def _accuracy_of_sets(run: FinishedRun, link: Link, k: int) -> AverageKAccuracy:
    rule = average_k(link(run.held_out.logits.astype(np.float64)), k)
    return average_k_accuracy(rule(link(run.test.logits.astype(np.float64))), run.test.labels)


def link_of(run: FinishedRun) -> Link:
    """Return the run's own link; for a method that only ranks, a temperature as in the paper."""
    if run.test.link is not None:
        return run.test.link
    val = run.held_out
    return temperature(val.logits, val.labels, None, val.observed)


def vqa(run: FinishedRun) -> dict[str, float]:
    """SPA's appendix: official accuracy of the likeliest answer, calibration of soft labels."""
    test = run.test
    chosen = test.logits.argmax(1, keepdims=True)
    figures = probability_figures(link_of(run), test)
    return {
        "VQA accuracy": 100
        * float(np.take_along_axis(test.labels.astype(np.float64), chosen, 1).mean()),
        **{name: 100 * figures[name] for name in ("ACE", "MCE")},
    }
