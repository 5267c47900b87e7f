"""Every loss and link of the five papers as it is written down, in plain Python, beside ours.

Oracle: the formula with ``math`` and loops over images and labels (``written_formulas``). A line of
``LOSSES`` names the formula, its slow loop, and the objective of ``labelwise.objectives`` that must
give the same number. Gradients and links are in the golden vectors.
"""

from math import exp, log1p

import pytest
import torch
import written_formulas as paper
from written_formulas import EMPTY, MANY, ONE, SECOND, T, Z

from labelwise import objectives
from labelwise.types import Outputs, Targets

CODE = {"eps_mode": "code"}
LOSSES = {
    "1.1 BCE": (paper.mean_of(lambda v: paper.sp(-v), paper.sp), objectives.BCE(), MANY),
    "1.2 focal": (
        paper.mean_of(*paper.asl(2, 2, 0)),
        objectives.Asymmetric(objectives.Focusing(2.0, 2.0, 0.0)),
        MANY,
    ),
    "1.2 ASL": (
        paper.mean_of(*paper.asl(1, 4, 0.05)),
        objectives.Asymmetric(objectives.Focusing(4.0, 1.0, 0.05)),
        MANY,
    ),
    "2.1 SPA": (paper.mean_of(*paper.spa()), objectives.SPA(), MANY),
    "2.2 LPR on cross-entropy": (
        lambda z, y: (
            paper.mean_of(lambda v: paper.sp(-v), paper.sp)(z, y) + 3 * paper.lpr(lambda v: v)(z, y)
        ),
        objectives.Sum(objectives.BCE(), objectives.Weighted(3.0, objectives.LabelPairs())),
        EMPTY,
    ),
    "2.2 LPR on SPA": (
        lambda z, y: paper.mean_of(*paper.spa())(z, y) + paper.lpr(paper.spa_odds)(z, y),
        objectives.Sum(objectives.SPA(), objectives.Weighted(1.0, objectives.LabelPairs())),
        MANY,
    ),
    "3.1 two-way": (paper.two_way(4.0), objectives.TwoWay(), EMPTY),
    "3.1 two-way with a margin": (
        paper.two_way(1.0, 0.7),
        objectives.TwoWay(temperature_pos=1.0, margin=0.7),
        MANY,
    ),
    "4.1 softmax": (
        lambda z, y: paper.mean(paper.labelled_softmax(z, y)),
        objectives.SoftmaxCrossEntropy(),
        EMPTY,
    ),
    "4.2 WARP": (paper.warp, objectives.WARP(rank="exact"), MANY),
    "4.3 pairwise": (
        lambda z, y: paper.mean(
            sum(map(sum, paper.hinges(*pair).values())) for pair in paper.pairs(z, y)
        ),
        objectives.PairwiseHinge(),
        EMPTY,
    ),
    "4.3 LSEP": (
        lambda z, y: paper.mean(
            log1p(sum(exp(n - p) for p in a for n in b)) for a, b in paper.pairs(z, y)
        ),
        objectives.LSEP(),
        EMPTY,
    ),
    "4.4 RML": (paper.rml, objectives.RML(rank="exact"), EMPTY),
    "5.1 quasibinary": (paper.quasibinary, objectives.Quasibinary(), EMPTY),
    "6 uniform": (paper.uniform, objectives.UniformKL(0.3), EMPTY),
    "6 maximal confidence": (paper.max_confidence, objectives.MaxConfidence(), EMPTY),
    "7 AN": (paper.smoothed(0.0), objectives.AN(**CODE), ONE),
    "7 AN-LS": (paper.smoothed(0.1), objectives.AN(smoothing=0.1, **CODE), ONE),
    "7 BCE-LS": (paper.smoothed(0.1), objectives.SmoothedBCE(**CODE), MANY),
    "7 WAN": (
        paper.mean_of(
            lambda v: paper.nl(paper.sigma(v)), lambda v: paper.nl(paper.sigma(-v)) / (T - 1)
        ),
        objectives.WAN(**CODE),
        ONE,
    ),
    "7 EPR": (paper.epr, objectives.EPR(2.0, **CODE), ONE),
    "7 PR": (paper.pr, objectives.PR(), ONE),
    "8.1 AN": (paper.an_of_average_k, objectives.WAN(per="image"), ONE),
    "8.1 EPR": (paper.epr_of_average_k, objectives.EPR(2.0, per="image"), ONE),
    "8.2 average-K": (paper.average_k, objectives.AverageK(2, alpha=3.0), ONE),
    "8.3 top-K without noise": (paper.hard_top_k, objectives.NoisedTopK(2, eps=0.0), ONE),
    "8.4 smooth top-K": (paper.smooth_top_k, objectives.SmoothTopK(2, tau=0.7), ONE),
}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("formula", LOSSES)
def test_a_loss_is_its_formula(formula):
    slow, objective, y = LOSSES[formula]
    outputs = Outputs(tensor(Z), {"proposal": tensor(SECOND)})
    assert objective(outputs, Targets(tensor(y))).item() == pytest.approx(slow(Z, y), rel=1e-9)
