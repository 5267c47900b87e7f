"""Oracles: the sets under the first link, and the promised share on photos nobody has seen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sample_scores import sample

from labelwise.calibration import isotonic, platt
from labelwise.decide import NEVER, AtMost, Threshold, find_promise
from labelwise.decide.promised_rules import same_sets
from labelwise.errors import DataError, SettingsError
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.scores import ScoreTable, promise_scores
from labelwise.scores.fit import make_promise

DRAWS, CONFIDENCE = 15, 0.9


def test_the_sets_are_those_that_were_tested_and_the_link_saw_all_rows():
    rows = sample(600, seed=1)
    before, after = (
        platt(rows.logits[:n], rows.labels[:n], Sigmoid(), scope="label") for n in (90, 600)
    )
    for rule in (Threshold(0.4), Threshold((0.2, 0.9, NEVER, 0.0, 1e-4))):
        moved = same_sets(rule, before, after, rows.logits, rows.names)
        other = sample(1000, seed=2)
        for part in (rows, other):
            np.testing.assert_array_equal(
                moved(after.decision_probs(part.logits)),
                rule(before.decision_probs(part.logits)),
            )
    # Thresholds that are scores of photos themselves, where rounding decides.
    scores = before.decision_probs(rows.logits)
    for row in range(20):
        rule = Threshold(tuple(scores[row].tolist()))
        moved = same_sets(rule, before, after, rows.logits, rows.names)
        np.testing.assert_array_equal(moved(after.decision_probs(rows.logits)), rule(scores))
    table = ScoreTable("scores.csv", rows, None)
    found = promise_scores(table, "recall=0.8", calibrator="platt", cross_fit=True)
    torch.testing.assert_close(
        found.link(rows.logits), platt(rows.logits, rows.labels, Sigmoid())(rows.logits)
    )
    assert found.promised.promises[0].n == 480
    assert "fitted on 120 others, and for the probabilities again on all 600" in found.fitted_on


def test_rounding_lets_no_photo_in():
    """A threshold so near a photo below it that float32 cannot tell them apart."""

    class Steep(Link):
        def log_probs(self, logits):
            return Sigmoid().log_probs(1e6 * logits)

    rows = replace(sample(2, names=("dog",)), logits=torch.tensor([[0.0], [1.0]]))
    moved = same_sets(Threshold(0.501), Steep(), Sigmoid(), rows.logits, rows.names)
    assert moved(Sigmoid().decision_probs(rows.logits))[:, 0].tolist() == [False, True]


def test_what_cannot_be_cross_fitted_is_refused():
    rows = sample(300, seed=3)
    table = ScoreTable("scores.csv", rows, None)
    with pytest.raises(SettingsError, match="of a calibrator; name one"):
        promise_scores(table, "recall=0.8", cross_fit=True)
    with pytest.raises(SettingsError, match="tags take the most probable"):
        promise_scores(table, "tags=0.8", calibrator="platt", cross_fit=True)
    steps = isotonic(rows.logits, rows.labels, Sigmoid())
    with pytest.raises(SettingsError, match="must rise, and at the threshold of 'dog'"):
        same_sets(Threshold(0.5), Sigmoid(), steps, rows.logits, rows.names)
    for rule, link in ((AtMost(Threshold(0.5), 1), Sigmoid()), (Threshold(0.5), Softmax())):
        with pytest.raises(SettingsError, match="links of single labels"):
            same_sets(rule, link, Sigmoid(), rows.logits, rows.names)


def test_a_promise_is_not_made_on_rows_that_fitted_its_link():
    rows = sample(60, seed=1)
    held, fitted = rows.take(np.arange(40)), rows.take(np.arange(39, 60))
    how = {"photos": "scores.csv", "confidence": CONFIDENCE, "seed": 0}
    with pytest.raises(DataError, match=f"1 of 40 were used for fitting, first '{rows.ids[39]}'"):
        make_promise(find_promise("recall=0.6"), Sigmoid(), held, fitted, **how)
