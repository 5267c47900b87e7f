"""What losses and links cannot use is refused with the rule and the value."""

import pytest
import torch
from contract import example

import labelwise.learn.objectives as o
from labelwise.errors import SettingsError
from labelwise.types import Outputs, Targets

LOGITS, LABELS = example()
GUESSES, EYE = torch.zeros(6, 5), torch.eye(3)
FLAT = "has no link where a higher logit"
INDEX = "targets need their index"

REFUSED = [
    (lambda: o.BCE()(LOGITS[0], LABELS), r"logits must be \(B, K\), got shape \(5,\)"),
    (lambda: o.BCE()(LOGITS, torch.arange(6)), r"matrix of 0 and 1, got .*one_hot\(ids, 5\)"),
    (lambda: o.BCE()(LOGITS, LABELS[:, :4]), r"shape of the logits \(6, 5\), got \(6, 4\)"),
    (lambda: o.BCE()(LOGITS, LABELS * 3), r"labels must lie in \[0, 1\], got 3.0"),
    (lambda: o.BCE()(LOGITS, LABELS * float("nan")), "labels must lie in .*got nan"),
    (lambda: o.BCE()(LOGITS, LABELS, LABELS * 0 + 2), "boolean, or 0 and 1, got 2"),
    (lambda: o.BCE()(LOGITS, LABELS, LABELS[:5] > 0), r"observed must have .* got \(5, 5\)"),
    (lambda: o.BCE(per="batch"), "per must be"),
    (lambda: o.BCE(pos_weight=[1.0, 0.0]), "pos_weight must be"),
    (lambda: o.BCE(pos_weight="heavy"), "pos_weight must be"),
    (lambda: o.Focusing(gamma_neg=-1), "must not be negative, got"),
    (lambda: o.Focusing(margin=1), r"margin must lie in \[0, 1\), got 1"),
    (lambda: o.PhiLink(weight_grad="some"), "weight_grad must be"),
    (lambda: o.Asymmetric(phi="wrong"), "phi must be one of .* got 'wrong'"),
    (lambda: o.Side(k=0), r"must be positive, got Side\(zeta=1.0, k=0"),
    (lambda: o.SPA() + -1 * o.LabelPairs(), "must not be negative, got -1"),
    (lambda: o.SPLC(5, threshold=1.0), "threshold must lie strictly between 0 and 1, got 1"),
    (lambda: o.SPLC(5, wait=-1), "wait must not be negative, got -1"),
    (lambda: o.SPLC(0), "num_images must be at least 1, got 0"),
    (lambda: o.LargeLoss(5, rate=1.0), r"rate must lie in \[0, 1\), got 1"),
    (lambda: o.FocalMarginLink(gamma=-1.0), "gamma must not be negative, got -1"),
    (lambda: o.Hill(gamma=1.0), FLAT),
    (lambda: o.Hill(gamma=0.5, lam=1.6), FLAT),
    (lambda: o.Hill(lam=1.2), r"lam must be at least 1\.5, .* got 1\.2"),
    (lambda: o.MMCE(0.0), "width must be above"),
    (lambda: o.LogitMargin(-1.0), "margin must not be negative"),
    (lambda: o.ROLE(2, 3, 0.0), "must be positive, got 2, 3 and 0.0"),
    (lambda: o.ROLE(2, 3, 1.0, table="a/file"), "table must be one of"),
    (lambda: o.ROLE(2, 3, 1.0, start=1.0), r"start must lie in \[0.5, 1\), got 1.0"),
    (lambda: o.ROLE(2, 3, 1.0)(torch.zeros(2, 3), EYE[:2]), INDEX),
    (lambda: o.NoisedTopK(0), "at least 1 .* got 0, 10, 0.2"),
    (lambda: o.NoisedTopK(1, eps=-1.0), "eps not negative"),
    (lambda: o.SmoothTopK(1, tau=0.0), "tau positive"),
    (lambda: o.NoisedTopK(3)(torch.zeros(1, 3), EYE[:1]), "below the 3 labels, got 3"),
    (lambda: o.SmoothTopK(3)(torch.zeros(1, 3), EYE[:1]), "below the 3 labels, got 3"),
    (lambda: o.AverageK(2)(Outputs(LOGITS), Targets(LABELS)), "head output 'proposal', got none"),
    (lambda: o.AverageK(0.5), r"k must be at least 1 .* got 0.5"),
    (lambda: o.AverageK(2, alpha=-1), "alpha not negative, got 2 and -1"),
    (lambda: o.average_k_candidates(EYE, EYE, 4), "between 1 and the 3 labels, got 4"),
    (lambda: o.SoftmaxCrossEntropy(0), "temperature must be positive, got 0"),
    (lambda: o.UniformKL(-1), "beta must not be negative, got -1"),
    (lambda: o.DistributionBalanced((0.5, 0.1), scale=0.0), "scale must be positive"),
    (lambda: o.Quasibinary(penalty="soft"), "penalty must be one of"),
    (lambda: o.Quasibinary(momentum=1.0), "momentum must lie in"),
    (lambda: o.WARP(rank="first"), "rank must be one of .* got 'first'"),
    (lambda: o.WARP(rounding="up"), "rounding must be"),
    (lambda: o.PairwiseHinge(0), "margin must be positive, got 0"),
    (lambda: o.RML(beta=2), "RML needs s < 1"),
    (lambda: o.TwoWay(side="left"), "side must be one of"),
    (lambda: o.TwoWay(temperature_pos=0), "must be positive, got 0 and"),
    (lambda: o.AN(smoothing=0.5), r"smoothing must lie in \[0, 0.5\), got 0.5"),
    (lambda: o.AN(eps_mode="exact"), "eps_mode must be one of .* got 'exact'"),
    (lambda: o.WAN(per="batch"), "per must be one of .* got 'batch'"),
    (lambda: o.EPR(0.0), "k must be positive .* got 0.0"),
    (lambda: o.EPR(1.0, weight=-1.0), "weight not negative, got 1.0 and -1.0"),
]


@pytest.mark.parametrize(("make", "rule"), REFUSED)
def test_what_cannot_be_used_is_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_pairs_need_an_objective_with_probabilities():
    with pytest.raises(SettingsError, match="has no probabilities"):
        (o.TwoWay() + o.LabelPairs())(LOGITS, LABELS)
