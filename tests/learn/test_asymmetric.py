"""Oracles: golden vectors, cross-entropy, timm's ASL, numerical minimisation of the risk."""

import golden
import pytest
import torch

import labelwise.learn.objectives as o
from labelwise.learn.methods import make_objective
from labelwise.types import DatasetFacts

CASES = golden.cases("asy")
PHI = golden.cases("phi_map")
LOGITS = torch.linspace(-12, 12, 97, dtype=torch.float64)


def focusing(case, weight_grad="full"):
    params = case["params"]
    return o.Focusing(params["gamma_neg"], params["gamma_pos"], params["margin"], weight_grad)


@pytest.mark.parametrize("name", ["asl_repo_default", "focal_sym2", "asyfocal_1_4"])
def test_golden_values_and_both_gradients(name):
    case = CASES[name]
    for mode, key in [("full", "grad_of_sum_full"), ("detached", "grad_of_sum_detached_weight")]:
        logits, labels, _ = golden.batch(case)
        loss = o.asymmetric_loss(logits, labels, focusing(case, mode))
        golden.assert_golden(loss, case["expected"]["elementwise"])
        loss.sum().backward()
        golden.assert_golden(logits.grad, case["expected"][key])
        mean = o.Asymmetric(focusing(case, mode))(logits, labels)
        golden.assert_golden(mean, case["expected"]["mean"])


def test_golden_margin_and_reduction():
    case = CASES["negatives below/at/just above margin"]
    logits = torch.logit(golden.tensor(case["inputs"]["probs"]))
    loss = o.asymmetric_loss(logits, torch.zeros_like(logits), focusing(case))
    golden.assert_golden(loss, case["expected"]["elementwise"])
    assert loss[0, 0] == 0
    case = CASES["q2l_reduction_1000x_mean"]
    logits, labels, _ = golden.batch(case)
    loss = 1000 * o.Asymmetric(focusing(case))(logits, labels)
    golden.assert_golden(loss, case["expected"]["loss"])


@pytest.mark.parametrize("name", [name for name in PHI if name.startswith(("gn=", "maximum"))])
def test_golden_phi(name):
    case = PHI[name]
    logits = torch.logit(golden.tensor(case["inputs"]["prob"]))
    for mode, key in [("full", "phi_full_gradient"), ("detached", "phi_detached_weight")]:
        expected = case["expected"][key]
        probs = o.PhiLink(**case["params"], weight_grad=mode)(logits)
        golden.assert_golden(probs, expected if isinstance(expected, list) else [expected])


def test_golden_population_optima():
    case = PHI["population optimum under each gradient mode, ASY(gn=4,m=.05)"]
    for row in case["expected"]["rows"]:
        options = {"gamma_neg": 4, "gamma_pos": row["gamma_pos"], "margin": 0.05}
        full, detached = (
            o.PhiLink(**options),
            o.PhiLink(**options, weight_grad="detached"),
        )
        at_full = torch.logit(golden.tensor(row["p_star_full"]))
        at_detached = torch.logit(golden.tensor(row["p_star_detached"]))
        torch.testing.assert_close(full(at_full).item(), row["eta"], atol=1e-6, rtol=0)
        torch.testing.assert_close(detached(at_detached).item(), row["eta"], atol=1e-6, rtol=0)
        wrong = row["phi_full_of_p_star_detached"]
        torch.testing.assert_close(full(at_detached).item(), wrong, atol=1e-6, rtol=0)


def test_with_the_gradient_of_the_formula_the_printed_map_is_the_right_one():
    facts = DatasetFacts(1, 1, 0.5, (0.5,))
    maps = [make_objective("asl+phi", facts, phi=phi).link for phi in ("right", "printed")]
    torch.testing.assert_close(maps[0](LOGITS), maps[1](LOGITS), rtol=0, atol=0)


def test_margin_makes_ties_at_zero():
    link = o.PhiLink(4, 1, 0.05)
    logits = torch.logit(torch.tensor([0.01, 0.04, 0.06])).requires_grad_()
    log_p, log_q = link.log_probs(logits)
    assert log_p[:2].tolist() == [float("-inf")] * 2
    assert log_q[:2].tolist() == [0.0, 0.0]
    log_q.sum().backward()
    assert logits.grad.isfinite().all()
    logits = torch.tensor([[-25.0]], requires_grad=True)  # no dead zone for very wrong positives
    o.Asymmetric(o.FOCAL)(logits, torch.ones(1, 1)).backward()
    assert logits.grad.item() < -0.9


SPA_CASES = golden.cases("spa")


def sides(case):
    params = case["params"]
    return [o.Side(*(params[f"{k}_{side}"] for k in ("zeta", "k", "b"))) for side in ("pos", "neg")]


@pytest.mark.parametrize(
    "name", [name for name in SPA_CASES if not name.startswith(("WRONG", "2x4"))]
)
def test_golden_elementwise(name):
    case = SPA_CASES[name]
    scores, expected = golden.tensor(case["inputs"]["scores"]), case["expected"]
    for label, key in ((1.0, "loss_pos"), (0.0, "loss_neg")):
        loss = o.spa_loss(scores, torch.full_like(scores, label), *sides(case))
        golden.assert_golden(loss, expected[key])
    link = o.SPALink(*sides(case))
    if "prob" in expected:
        golden.assert_golden(link(scores), expected["prob"])
    if "logodds" in expected:
        golden.assert_golden(link.log_odds(scores), expected["logodds"])


def test_golden_batch():
    case = SPA_CASES["2x4 batch"]
    logits, labels, _ = golden.batch(case)
    objective, expected = o.SPA(*sides(case)), case["expected"]
    loss = objective(logits, labels)
    loss.backward()
    golden.assert_golden(loss, expected["mean"])
    golden.assert_golden(logits.grad, expected["grad_of_mean"])
    golden.assert_golden(objective.probabilities(logits.detach()), expected["prob"])
