"""Terms beside a loss, against golden vectors and loops over pairs."""

import itertools
from math import exp, log

import golden
import pytest
import torch
from contract import facts
from hypothesis import given, settings
from hypothesis import strategies as st

import labelwise.learn.objectives as o
import labelwise.learn.objectives.terms as label_pair
from labelwise.learn.methods import make_objective
from labelwise.learn.objectives.base import split_labels
from labelwise.links import Sigmoid
from labelwise.types import Outputs, Targets

CASES = golden.cases("lpr")


def label_pairs(log_odds, labels, observed=None):
    """Eqs. 19 and 20 over all T^2 pairs, through the pair probability itself."""
    values = []
    for row, u in enumerate(log_odds.tolist()):
        seen = [t for t in range(len(u)) if observed is None or observed[row, t]]
        present, absent = ([t for t in seen if labels[row, t] == side] for side in (1, 0))
        count, total = len(present) + len(absent), 0.0
        for t, other in itertools.product(present, absent):
            p, q = 1 / (1 + exp(-u[t])), 1 / (1 + exp(-u[other]))
            total -= log(p * (1 - q) / (p * (1 - q) + q * (1 - p)))
        values.append(2 * total / max(count * (count - 1), 1))
    return values


@pytest.mark.parametrize("name", [n for n in CASES if "per_sample" in CASES[n]["expected"]])
def test_golden_values(name):
    log_odds, labels, observed = golden.batch(CASES[name])
    loss = o.label_pair_loss(log_odds, *split_labels(labels, observed))
    golden.assert_golden(loss, CASES[name]["expected"]["per_sample"])
    case = CASES["gradient of batch mean wrt log-odds"]
    log_odds, labels, observed = golden.batch(case)
    o.label_pair_loss(log_odds, *split_labels(labels, observed)).mean().backward()
    golden.assert_golden(log_odds.grad, case["expected"]["grad"])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.floats(0, 1), st.integers(0, 99))
def test_equals_the_loop_over_all_pairs(rows, columns, density, seed):
    generator = torch.Generator().manual_seed(seed)
    log_odds = 3 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    labels = (torch.rand(rows, columns, generator=generator) < density).double()
    observed = torch.rand(rows, columns, generator=generator) < 0.8
    for mask in (None, observed):
        fast = o.label_pair_loss(log_odds, *split_labels(labels, mask))
        slow = label_pairs(log_odds, labels, mask)
        torch.testing.assert_close(fast, torch.tensor(slow, dtype=torch.float64))


def test_many_present_labels_keep_the_digits_of_tiny_terms():
    """70 present labels, some pairs near and most far apart, in float32 against float64."""
    scores = torch.cat([torch.linspace(5, 40, 70), torch.linspace(-40, 5, 90)])[None]
    present = torch.arange(160)[None] < 70
    for shift in (0.0, 30.0):
        exact = (scores + shift * present).double()
        expected = o.label_pair_loss(exact, present, ~present)
        pairs = torch.nn.functional.softplus(exact[0, 70:, None] - exact[0, None, :70])
        torch.testing.assert_close(expected.item(), pairs.sum().item() * 2 / (160 * 159))
        found = o.label_pair_loss(exact.float(), present, ~present)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
    present = torch.arange(400)[None] < 200  # hundreds of equal labels do not overflow
    found = o.label_pair_loss(torch.zeros(1, 400), present, ~present).item()
    torch.testing.assert_close(found, log(2) * 200 * 200 * 2 / (400 * 399), rtol=1e-5, atol=0)


@pytest.mark.parametrize("density", [0.2, 0.8])
def test_chunks_change_nothing(density, monkeypatch):
    log_odds = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    sides = split_labels((torch.rand(7, 11) < density).double(), None)
    whole = o.label_pair_loss(log_odds, *sides)
    (grad,) = torch.autograd.grad(whole.sum(), log_odds)
    monkeypatch.setitem(label_pair._CHUNK, "cpu", 23)
    parts = o.label_pair_loss(log_odds, *sides)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), log_odds)[0], grad)


def test_operator_meets_torchs_own_checks():
    log_odds = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    present, absent = split_labels((torch.rand(5, 6) < 0.4).double(), None)
    torch.library.opcheck(label_pair._pair_sums, (log_odds, present, absent))


def test_infinite_log_odds_leave_a_finite_gradient():
    objective = o.Asymmetric(phi="right") + o.LabelPairs()
    logits = torch.tensor([[-9.0, -9.0, 2.0, -8.0]], requires_grad=True)
    loss = objective(logits, torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_memory_stays_far_below_pairs():
    """B x K x K would be 3.2 GB here; the listed pairs are 32 x 10 rows of 5,000."""
    from torch.profiler import ProfilerActivity, profile

    logits = torch.randn(32, 5000, requires_grad=True)
    labels = torch.zeros(32, 5000)
    labels[:, :10] = 1
    outputs, targets = Outputs(logits), Targets(labels)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as trace:
        o.LabelPairs()(outputs, targets, o.BCE().link).backward()
    events = trace.key_averages()
    largest = max(event.self_cpu_memory_usage / max(event.count, 1) for event in events)
    assert largest < 4 * 32 * 5000 * 4


SHARES = torch.tensor([[0.3, 0.0, 1.0, 0.6], [0.9, 0.8, 0.2, 1.0], [0.0, 0.0, 0.5, 0.0]]).double()
SEEN = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("observed", [None, SEEN])
def test_soft_labels_cost_the_mean_over_all_hard_labels(observed, monkeypatch):
    logits = 2 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()

    def cost(labels):
        found = logits.clone().requires_grad_()
        loss = o.LabelPairs()(Outputs(found), Targets(labels, observed), o.BCE().link)
        return torch.stack([loss.detach().expand(3, 4), torch.autograd.grad(loss, found)[0]])

    shares = SHARES if observed is None else torch.where(observed, SHARES, 0.0)
    expected = torch.zeros(2, 3, 4).double()
    for hard in itertools.product((0.0, 1.0), repeat=4):
        labels = torch.tensor(hard).double().expand(3, 4)
        chance = torch.where(labels == 1, shares, 1 - shares).prod(dim=1)
        for row in range(3):  # each image by itself: the labels of the others do not matter
            kept = torch.zeros(3, 4).double()
            kept[row] = labels[row]
            alone = cost(kept) - cost(torch.zeros(3, 4).double())
            expected += chance[row] * alone
    torch.testing.assert_close(cost(shares), expected)
    monkeypatch.setitem(label_pair._CHUNK, "cpu", 5)
    torch.testing.assert_close(cost(shares), expected)


@pytest.mark.parametrize(
    "sides", [(SHARES, 1 - SHARES), split_labels(SHARES.round(), SEEN)], ids=["soft", "hard"]
)
def test_derivatives(sides):
    log_odds = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: o.label_pair_loss(u, *sides), log_odds)
    assert torch.autograd.gradgradcheck(lambda u: o.label_pair_loss(u, *sides), (log_odds,))


def batch():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(8, 3, generator=generator, dtype=torch.float64)
    truth = (torch.rand(8, 3, generator=generator) < 0.4).double()
    return logits, truth, torch.rand(8, 3, generator=generator) < 0.7


def value(term, logits, labels, observed=None):
    return term(Outputs(logits), Targets(labels, observed), Sigmoid())


def test_calibration_terms_are_their_formulas_and_reach_the_loss_with_their_weights():
    logits, labels, observed = batch()
    probs, truth = torch.sigmoid(logits)[observed], labels[observed]
    error, distances = truth - probs, (probs[:, None] - probs).abs()
    pairs = (error[:, None] * error * torch.exp(-distances / 0.1)).mean()
    excess = [max(0.0, abs(v.item()) - 2.0) for v in logits[observed]]
    for term, expected in ((o.MMCE(0.1), pairs), (o.LogitMargin(2.0), sum(excess) / len(excess))):
        assert value(term, logits, labels, observed).item() == pytest.approx(float(expected))
    observed[:, 1] = False  # a label that was not seen has no gap
    gaps = torch.sigmoid(logits) - labels
    means = [gaps[observed[:, column], column].mean().abs() for column in (0, 2)]
    found = value(o.MeanDifference(), logits, labels, observed)
    torch.testing.assert_close(found, torch.stack(means).mean())
    plain = o.BCE()(logits, labels)
    for name, term in (("mmce", o.MMCE()), ("mdca", o.MeanDifference()), ("mbls", o.LogitMargin())):
        found = make_objective(f"bce+{name}", facts(8, 3), term_weight=0.7)(logits, labels)
        torch.testing.assert_close(found, plain + 0.7 * value(term, logits, labels))
