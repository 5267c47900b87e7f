"""Oracles: golden vectors, cross-entropy, minimisation of the risk, the round trip."""

import golden
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from labelwise.objectives import SPA, LabelPairs, Side, SPALink, spa_loss

CASES = golden.cases("spa")
LOGITS = torch.linspace(-6, 6, 41, dtype=torch.float64)
ABSENT = pytest.mark.parametrize("absent", [Side(), Side(5, 3, 1), Side(0.5, 2, -1)])
SIDES = st.builds(Side, st.floats(0.2, 8), st.floats(0.3, 4), st.floats(-2, 2))


def sides(case):
    p = case["params"]
    return Side(p["zeta_pos"], p["k_pos"], p["b_pos"]), Side(p["zeta_neg"], p["k_neg"], p["b_neg"])


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("WRONG", "2x4"))])
def test_golden_elementwise(name):
    case = CASES[name]
    scores, expected = golden.tensor(case["inputs"]["scores"]), case["expected"]
    golden.assert_golden(
        spa_loss(scores, torch.ones_like(scores), *sides(case)), expected["loss_pos"]
    )
    golden.assert_golden(
        spa_loss(scores, torch.zeros_like(scores), *sides(case)), expected["loss_neg"]
    )
    link = SPALink(*sides(case))
    if "prob" in expected:
        golden.assert_golden(link(scores), expected["prob"])
    if "logodds" in expected:
        golden.assert_golden(link.log_odds(scores), expected["logodds"])


def test_golden_batch():
    case = CASES["2x4 batch"]
    logits, labels, _ = golden.batch(case)
    objective, expected = SPA(*sides(case)), case["expected"]
    loss = objective(logits, labels)
    loss.backward()
    golden.assert_golden(loss, expected["mean"])
    golden.assert_golden(logits.grad, expected["grad_of_mean"])
    golden.assert_golden(objective.probabilities(logits.detach()), expected["prob"])


def test_printed_link_is_not_produced():
    case = CASES["WRONG link (eq. 17 exactly as printed) - must NOT be produced"]
    wrong = golden.tensor(case["expected"]["prob_printed_formula"])
    probs = SPALink(*sides(case))(golden.tensor(case["inputs"]["scores"]))
    assert (wrong.diff() < 0).all()
    assert (probs.diff() > 0).all()


@pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
def test_plain_sides_are_cross_entropy(label):
    labels = torch.full_like(LOGITS, label)
    expected = binary_cross_entropy_with_logits(LOGITS, labels, reduction="none")
    torch.testing.assert_close(spa_loss(LOGITS, labels, Side(), Side()), expected)


@settings(max_examples=25, deadline=None)
@given(SIDES, SIDES, st.floats(0.01, 0.99))
def test_strictly_proper_for_any_sides(present, absent, chance):
    """The risk is convex; its slope vanishes where the link gives the chance."""
    truth = torch.tensor(chance, dtype=torch.float64)
    logit = SPALink(present, absent).logits_at(truth).requires_grad_()
    spa_loss(logit, truth, present, absent).backward()
    scale = min(present.k / present.zeta, absent.k / absent.zeta)
    assert abs(logit.grad.item()) < 1e-8 * max(1.0, scale)
    torch.testing.assert_close(
        SPALink(present, absent)(logit.detach()).item(), chance, atol=1e-6, rtol=0
    )


@ABSENT
def test_link_rises_and_stays_finite(absent):
    log_odds = SPALink(Side(), absent).log_odds(torch.tensor([-1e4, *LOGITS, 1e4]))
    assert log_odds.isfinite().all()
    assert (log_odds.diff() > 0).all()
    log_p, log_q = SPALink(Side(), absent).log_probs(LOGITS)
    torch.testing.assert_close(torch.logaddexp(log_p, log_q), torch.zeros_like(log_p))


@ABSENT
def test_round_trip(absent):
    link = SPALink(Side(), absent)
    for top, tolerance in [(15, 1e-8), (30, 1e-2)]:  # 1 - p has few digits left at the top
        logits = torch.linspace(-30, top, 79, dtype=torch.float64)
        torch.testing.assert_close(link.logits_at(link(logits)), logits, atol=tolerance, rtol=0)


def test_one_half_is_not_at_zero():
    half = SPALink().logits_at(torch.tensor(0.5)).item()
    torch.testing.assert_close(half, 0.952070206, atol=1e-8, rtol=0)
    assert SPALink()(torch.tensor(0.0)).item() < 0.06


def test_rejects_a_flat_side_and_a_negative_weight():
    with pytest.raises(ValueError, match=r"must be positive, got Side\(zeta=1.0, k=0"):
        Side(k=0)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        SPA() + -1 * LabelPairs()


def test_defaults_are_the_papers():
    assert SPA().absent == Side(zeta=5, k=3, b=1)
    assert SPALink().spec()["absent"] == {"zeta": 5, "k": 3, "b": 1}
