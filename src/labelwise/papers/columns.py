"""Columns: the papers' own figures, computed from one run as each paper defines them.

All in per cent except AUROC. Every function takes the outcome of a run and returns figures by
printed name; one that the table names with an argument takes that, too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelwise.base.arrays import Values
from labelwise.calibration import expect_zero_share, temperature
from labelwise.decide import average_k
from labelwise.learn.objectives import PhiLink, QuasibinaryLink
from labelwise.links import Link, Softmax
from labelwise.metrics import (
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
from labelwise.papers.measures import FinishedRun, probability_figures
from labelwise.queries import retrieval_map


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
    log_c = float(link.log_normalizer)
    above = run.test.logits.astype(np.float64) > log_c
    figures = {**top_error(run), "q > 1": 100 * float(above.mean()), "C": float(np.exp(log_c))}
    journal = RunFolder(run.folder).journal.read()
    kept = [line["link.log_normalizer"] for line in journal if "link.log_normalizer" in line]
    last = np.exp(np.asarray(kept[int(len(kept) * (1 - SETTLED)) :], dtype=np.float64))
    if len(last) > 1:
        figures["variance of C"] = float(last.var())
    return figures


def in_and_out(run: FinishedRun, share: float | None = None) -> dict[str, float]:
    """Table II of quasibinary; the probabilities may be told the share of images without labels."""
    link, test = link_of(run), run.test
    if share is not None:
        link = expect_zero_share(link, run.held_out.labels, share)
    out = zero_label_rows(test.labels)
    confidence = max_confidence(link(test.logits.astype(np.float64)))
    scores = probability_figures(link, test)
    proper = ("log loss IN", "log loss OUT", "Brier IN", "Brier OUT", "log loss", "Brier")
    return {
        "IN accuracy": 100 * top_accuracy(test.logits[~out], test.labels[~out]).value,
        "OUT MMC": 100 * float(confidence[out].mean()),
        "AUROC": separation_auroc(confidence[~out], confidence[out]),
        **{name: scores[name] for name in proper},
        "ECE": 100 * scores["ECE"],
    }


def top_four(run: FinishedRun, read: str = "as trained") -> dict[str, float]:
    """Table III of quasibinary: macro F1 and ECE of the four most confident labels, 10 bins.

    Logits are read through the run's own link, the same ``after temperature`` fitted on validation,
    ``as softmax``, or ``normalised``: divided by their sum over the labels of an image.
    """
    test, link = run.test, link_of(run)
    if read == "as softmax":
        link = Softmax()
    elif read == "after temperature":
        link = temperature(run.held_out.logits, run.held_out.labels, run.held_out.link)
    probs = link(test.logits.astype(np.float64))
    if read == "normalised":
        probs = probs / probs.sum(1, keepdims=True)
    chosen = top_k_sets(probs, 4)
    return {
        "F1": 100 * top_k_scores(probs, test.labels, test.observed, k=4).macro_f1,
        "ECE": 100 * float(reliability(probs, test.labels, test.observed, where=chosen).ece()),
    }


def ranked(run: FinishedRun, scores: Values | None = None) -> dict[str, float]:
    """Return mAP over labels and over images, of the logits unless other scores are given."""
    given = run.test.logits if scores is None else scores, run.test.labels, run.test.observed
    by_label, by_image = average_precision(*given), average_precision(*given, by="image")
    return {"mAP@class": 100 * by_label.value, "mAP@sample": 100 * by_image.value}


def ranked_and_calibrated(
    run: FinishedRun, focusing: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Tables 3 and 4 of SPA, read through the map of a focusing or the run's own link."""
    link, test = link_of(run) if focusing is None else PhiLink(**focusing), run.test
    figures = probability_figures(link, test)
    # phi with a margin ties what it sets to 0, so the ranking is that of the probabilities.
    return {
        **ranked(run, link(test.logits.astype(np.float64))),
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


def average_sets(run: FinishedRun, k: int) -> dict[str, float]:
    """Tables 1 and 2 of average-K: sets of ``k`` labels, by softmax scores and by own ones."""
    figures: dict[str, float] = {}
    for words, link in (("", Softmax()), (", own scores", link_of(run))):
        if words and isinstance(link, Softmax):
            continue
        val, test = (link(rows.logits.astype(np.float64)) for rows in (run.held_out, run.test))
        accuracy = average_k_accuracy(average_k(val, k)(test), run.test.labels)
        groups = by_shot(accuracy.per_label.items, run.train.labels.sum(0))
        figures[f"overall{words}"] = 100 * accuracy.per_image.value
        defined = ((shot, mean) for shot, mean in groups.items() if mean.num_defined)
        figures |= {f"{shot}{words}": 100 * mean.value for shot, mean in defined}
        figures[f"set size{words}"] = accuracy.mean_size
    return figures


def voc_precision(run: FinishedRun) -> dict[str, float]:
    """Query2Label's mAP, whose precision is interpolated."""
    test = run.test
    mean = average_precision(test.logits, test.labels, test.observed, variant="voc")
    return {"mAP@class (VOC)": 100 * mean.value}


def link_of(run: FinishedRun) -> Link:
    """Return the run's own link; for a method that only ranks, a temperature as in the paper."""
    if run.test.link is not None:
        return run.test.link
    val = run.held_out
    return temperature(val.logits, val.labels, None, val.observed)


def vqa(run: FinishedRun) -> dict[str, float]:
    """SPA's appendix: official accuracy of the likeliest answer, calibration of soft labels."""
    test = run.test
    chosen = np.take_along_axis(test.labels, test.logits.argmax(1, keepdims=True), 1)
    figures = probability_figures(link_of(run), test) | {"VQA accuracy": chosen.mean(dtype=float)}
    return {name: 100 * float(figures[name]) for name in ("VQA accuracy", "ACE", "MCE")}
