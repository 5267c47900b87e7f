"""Columns: the papers' own figures, computed from one run as each paper defines them (METHODS 11).

All in per cent except AUROC. Every function takes the validation predictions (None where the
experiment has none) and the test predictions of a run, and returns figures by printed name.
"""

import torch

from labelwise.calibrate import expect_zero_share, temperature
from labelwise.decide import average_k
from labelwise.errors import DataError
from labelwise.experiments.measures import probability_figures
from labelwise.links import Link, Softmax
from labelwise.metrics import (
    average_k_accuracy,
    average_precision,
    max_confidence,
    reliability,
    separation_auroc,
    top_accuracy,
    top_k_scores,
    top_k_sets,
    zero_label_rows,
)
from labelwise.predictions import Predictions
from labelwise.retrieval import retrieval_map

__all__ = [
    "average_five",
    "in_and_out",
    "in_and_out_expecting_more",
    "ranked",
    "ranked_and_calibrated",
    "retrieval_by_length",
    "top_error",
    "top_four",
    "top_four_after_temperature",
    "voc_precision",
]

Val = Predictions | None

ZERO_SHARE = 0.77  # where the mean confidence on empty validation images came down to 6.5 %


def top_error(val: Val, test: Predictions) -> dict[str, float]:
    """Table I of quasibinary: the share of images whose most confident label is wrong."""
    return {"error": 100 * (1 - top_accuracy(test.logits, test.labels).value)}


def in_and_out(val: Val, test: Predictions) -> dict[str, float]:
    """Table II of quasibinary, and the proper scores that a shrinking of all p would worsen."""
    return _in_and_out(_link(val, test), test)


def in_and_out_expecting_more(val: Val, test: Predictions) -> dict[str, float]:
    """The same for probabilities that expect 77 % of the images to have no label."""
    held_out = _needed(val)
    own = _link(held_out, test)
    return _in_and_out(expect_zero_share(own, held_out.labels, ZERO_SHARE), test)


@torch.no_grad()
def _in_and_out(link: Link, test: Predictions) -> dict[str, float]:
    probs = link(test.logits.double())
    out = zero_label_rows(test.labels)
    confidence = max_confidence(probs)
    scores = probability_figures(link, test)
    return {
        "IN accuracy": 100 * top_accuracy(test.logits[~out], test.labels[~out]).value,
        "OUT MMC": 100 * float(confidence[out].mean()),
        "AUROC": separation_auroc(confidence[~out], confidence[out]),
        **{f"log loss{part}": scores[f"log loss{part}"] for part in (" IN", " OUT")},
        **{f"Brier{part}": scores[f"Brier{part}"] for part in (" IN", " OUT")},
        "log loss": scores["log loss"],
        "Brier": scores["Brier"],
        "ECE": 100 * scores["ECE"],
    }


def top_four(val: Val, test: Predictions) -> dict[str, float]:
    """Table III of quasibinary: macro F1 and ECE of the four most confident labels, 10 bins."""
    return _top_four(_link(val, test), test)


def top_four_after_temperature(val: Val, test: Predictions) -> dict[str, float]:
    """The same after a temperature fitted on validation."""
    held_out = _needed(val)
    return _top_four(temperature(held_out.logits, held_out.labels, held_out.link), test)


@torch.no_grad()
def _top_four(link: Link, test: Predictions) -> dict[str, float]:
    probs = link(test.logits.double())
    chosen = top_k_sets(probs, 4)
    return {
        "F1": 100 * top_k_scores(probs, test.labels, test.observed, k=4).macro_f1,
        "ECE": 100 * float(reliability(probs, test.labels, test.observed, where=chosen).ece()),
    }


def ranked(val: Val, test: Predictions) -> dict[str, float]:
    """Return mAP over labels and over images."""
    by_label = average_precision(test.logits, test.labels, test.observed)
    by_image = average_precision(test.logits, test.labels, test.observed, by="image")
    return {"mAP@class": 100 * by_label.value, "mAP@sample": 100 * by_image.value}


def ranked_and_calibrated(val: Val, test: Predictions) -> dict[str, float]:
    """Tables 3 and 4 of SPA: mAP, and ACE and MCE over all entries, 10 bins of equal width."""
    link = _link(val, test)
    probs = link(test.logits.double())
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


@torch.no_grad()
def retrieval_by_length(val: Val, test: Predictions) -> dict[str, float]:
    """Figure 3 of SPA: mAP over queries of n wanted and unwanted labels."""
    log_p, log_q = _link(val, test).log_probs(test.logits.double())
    points = retrieval_map(log_p, log_q, test.labels, test.observed, longest=5)
    return {f"n={point.length}": 100 * point.value for point in points}


def average_five(val: Val, test: Predictions) -> dict[str, float]:
    """Tables of average-K at K = 5: the threshold is chosen on validation, for the link's p."""
    held_out = _needed(val)
    return {
        "average-5 accuracy": _average_five(held_out, test, _link(held_out, test)),
        "average-5 accuracy, softmax scores": _average_five(held_out, test, Softmax()),
    }


def voc_precision(val: Val, test: Predictions) -> dict[str, float]:
    """Query2Label's mAP, whose precision is interpolated."""
    mean = average_precision(test.logits, test.labels, test.observed, variant="voc")
    return {"mAP@class (VOC)": 100 * mean.value}


@torch.no_grad()
def _average_five(val: Predictions, test: Predictions, link: Link) -> float:
    rule = average_k(link(val.logits.double()), 5)
    sets = rule(link(test.logits.double()))
    return 100 * average_k_accuracy(sets, test.labels).per_image.value


def _link(val: Val, test: Predictions) -> Link:
    """Return the run's own link; for a method that only ranks, a temperature as in the paper."""
    if test.link is not None:
        return test.link
    held_out = _needed(val)
    return temperature(held_out.logits, held_out.labels, None, held_out.observed)


def _needed(val: Val) -> Predictions:
    if val is None:
        raise DataError("this figure is fitted on a validation split, and the run has none")
    return val
