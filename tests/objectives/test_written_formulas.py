"""Every loss and link of the five papers as it is written down, in plain Python, beside ours.

Oracle: the formula with ``math`` and loops over images and labels (``written_formulas``). A line of
``LOSSES`` names the formula, its slow loop, and the objective of ``labelwise.objectives`` that must
give the same number; then come closed gradients, links, and what a batch keeps.
"""

from math import exp, inf, log, log1p

import pytest
import torch
import written_formulas as paper
from written_formulas import EMPTY, EPS, MANY, ONE, SECOND, B, T, Z

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


def test_unknown_absences_count_nothing_where_they_are_ignored():
    """IU: known entries alone, over B T; IUN is IU told which absences are true."""
    seen = [[1, 1, 1, 0, 0]] * B
    known = [(v, t) for v, t, s in zip(*map(flat, (Z, MANY, seen)), strict=True) if s]
    expected = sum(paper.nl(paper.sigma(v if t else -v)) for v, t in known) / (B * T)
    found = objectives.IU(**CODE)(Outputs(tensor(Z)), Targets(tensor(MANY), tensor(seen).bool()))
    assert found.item() == pytest.approx(expected, rel=1e-9)


def flat(rows):
    return [value for row in rows for value in row]


def test_role_is_its_formula_and_each_side_learns_from_the_other():
    def cross(a, b):
        return a * paper.nl(b) + (1 - a) * paper.nl(1 - b)

    f, y = ([list(map(paper.sigma, row)) for row in part] for part in (Z, SECOND))
    main = 0.0
    for i, j in ((i, j) for i in range(B) for j in range(T)):
        a, b = f[i][j], y[i][j]
        main += ONE[i][j] * (paper.nl(a) + paper.nl(b)) + cross(b, a) + cross(a, b)
    expected = [(paper.mean(map(sum, side)) - 2.0) / T for side in (f, y)]
    logits, theta = (tensor(part).requires_grad_() for part in (Z, SECOND))
    found = objectives.role_loss(logits, theta, tensor(ONE), 2.0, "code")
    assert found[0].item() == pytest.approx(main / (2 * B * T), rel=1e-9)
    assert found[1].item() == pytest.approx((expected[0] ** 2 + expected[1] ** 2) / 2, rel=1e-9)
    slope = torch.autograd.grad(found[0], logits)[0]
    for i, j in ((i, j) for i in range(B) for j in range(T)):
        p, taught = f[i][j], y[i][j]  # stop-gradient: the other side is a number
        by_p = -(ONE[i][j] + taught) / (p + EPS) + (1 - taught) / (1 - p + EPS)
        assert slope[i, j].item() == pytest.approx(by_p * p * (1 - p) / (2 * B * T), rel=1e-9)


@pytest.mark.parametrize("grad", ["full", "detached"])
@pytest.mark.parametrize(("pos", "neg", "m"), [(2.0, 2.0, 0.0), (1.0, 4.0, 0.05), (0.0, 4.0, 0.05)])
def test_gradients_of_asl_are_the_closed_ones_and_phi_is_where_they_cancel(grad, pos, neg, m):
    focusing = objectives.Focusing(neg, pos, m, grad)
    link = objectives.PhiLink(neg, pos, m, grad)
    for v in (-4.0, -2.0, 0.3, 1.7, 5.0):
        p, r = paper.sigma(v), 1 - paper.sigma(v)
        q = max(p - m, 0)
        rise = -(r**pos) * r - (pos * r**pos * p * paper.sp(-v) if grad == "full" else 0)
        fall = p * r * q**neg / (1 - q)
        if grad == "full" and q:
            fall -= p * r * neg * q ** (neg - 1) * log(1 - q)
        for label, expected in ((1.0, rise), (0.0, fall if p > m else 0.0)):
            x = torch.tensor(v, dtype=torch.float64, requires_grad=True)
            objectives.asymmetric_loss(x, torch.tensor(label), focusing).backward()
            assert x.grad.item() == pytest.approx(expected, rel=1e-9)
        eta = fall / (fall - rise) if p > m else 0.0  # eta rise + (1 - eta) fall = 0
        found = link(torch.tensor([v], dtype=torch.float64))
        assert found.item() == pytest.approx(eta, rel=1e-9)


def test_gradients_of_spa_are_the_closed_ones_and_its_link_is_where_they_cancel():
    sides = objectives.Side(2.0, 0.5, 0.3), objectives.Side(5.0, 3.0, 1.0)
    link = objectives.SPALink(*sides)
    for v in (-3.0, 0.0, 0.4, 2.0):
        present, absent = sides
        rise = -present.k / present.zeta * paper.sigma(-present.k * (v - present.b))
        fall = absent.k / absent.zeta * paper.sigma(absent.k * (v - absent.b))
        for label, expected in ((1.0, rise), (0.0, fall)):
            x = torch.tensor(v, dtype=torch.float64, requires_grad=True)
            objectives.spa_loss(x, torch.tensor(label), *sides).backward()
            assert x.grad.item() == pytest.approx(expected, rel=1e-9)
        odds = paper.spa_odds(v, 2.0, 0.5, 0.3, 5.0, 3.0, 1.0)
        x = torch.tensor([v], dtype=torch.float64, requires_grad=True)
        found = link.log_odds(x)
        assert found.item() == pytest.approx(odds, rel=1e-9)
        assert paper.sigma(odds) == pytest.approx(fall / (fall - rise), rel=1e-9)
        steep = 3.0 * paper.sigma(-3.0 * (v - 1.0)) + 0.5 * paper.sigma(0.5 * (v - 0.3))
        assert torch.autograd.grad(found, x)[0].item() == pytest.approx(steep, rel=1e-9)


@pytest.mark.parametrize("penalty", ["literal", "detached"])
def test_gradients_of_quasibinary_are_the_closed_ones(penalty):
    z = [[v + 3 * (i == 0 and j == 0) for j, v in enumerate(row)] for i, row in enumerate(Z)]
    n = sum(map(sum, EMPTY))
    c = sum(exp(v) for v in flat(z)) / n
    above = sum(exp(v) > c for v in flat(z))
    assert 0 < above < n
    logits = tensor(z).requires_grad_()
    objectives.Quasibinary(penalty=penalty)(Outputs(logits), Targets(tensor(EMPTY))).backward()
    for v, t, slope in zip(flat(z), flat(EMPTY), logits.grad.flatten().tolist(), strict=True):
        q = exp(v) / c
        share = 1 - above / n if penalty == "literal" else 1
        assert slope == pytest.approx((share * q - t + (q > 1)) / B, rel=1e-9, abs=1e-12)


def test_the_normaliser_is_a_moving_average_and_cuts_probabilities_at_1():
    objective, average = objectives.Quasibinary(), None
    for shift in (0.0, 1.0, -2.0):
        rows = [[v + shift for v in row] for row in Z]
        value = sum(exp(v) for v in flat(rows)) / sum(map(sum, MANY))
        average = value if average is None else 0.9 * average + 0.1 * value
        objective(Outputs(tensor(rows)), Targets(tensor(MANY)))
    found = objective.link(tensor(Z))
    expected = tensor([[min(exp(v) / average, 1.0) for v in row] for row in Z])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(objective.link(tensor([[50.0, -inf]])), tensor([[1.0, 0.0]]))
