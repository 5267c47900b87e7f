"""Softmax, its forms for images without labels, and top-k losses against golden vectors,
enumeration and their limits."""

import itertools
from itertools import combinations
from math import exp, log, log1p

import golden
import pytest
import torch
from contract import example, facts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, log_softmax, one_hot

import labelwise.learn.objectives as o
import labelwise.learn.objectives.terms as label_pair
from labelwise import objectives
from labelwise.learn.methods import make_objective
from labelwise.learn.objectives.base import split_labels
from labelwise.learn.objectives.softmax import log_symmetric_sums
from labelwise.links import Sigmoid
from labelwise.types import DatasetFacts, Outputs, Targets


@pytest.mark.parametrize(
    ("method", "function"),
    [("uniform_kl", objectives.uniform_kl), ("max_conf", objectives.max_confidence)],
)
def test_golden_softmax_and_zero_label(method, function):
    (case,) = golden.cases(method).values()
    log_probs = log_softmax(golden.tensor(case["inputs"]["logits"]), dim=1)
    golden.assert_golden(function(log_probs), case["expected"]["per_sample"])
    golden.assert_golden(function(log_probs).mean(), case["expected"]["mean"])
    (case,) = golden.cases("softmax_ml").values()
    loss = objectives.SoftmaxCrossEntropy()(*golden.batch(case)[:2])
    golden.assert_golden(loss, case["expected"]["mean"])


def test_images_without_labels_have_their_own_term():
    logits, labels = example()
    labels[3] = 0
    inside, log_p = labels.any(1), logits.log_softmax(1)
    entropy = -(labels / labels.sum(1, keepdim=True) * log_p).sum(1)[inside]
    expected = entropy.mean() + 0.3 * (-log_p.mean(1)[~inside] - log(5)).mean()
    torch.testing.assert_close(objectives.UniformKL(0.3)(logits, labels), expected)
    expected = torch.cat([entropy, log_p.amax(1)[~inside]]).mean()
    torch.testing.assert_close(objectives.MaxConfidence()(logits, labels), expected)


def test_torch_agrees_on_soft_shares_and_temperature():
    logits, labels = example()
    some = labels.sum(dim=1) > 0
    shares = labels[some] / labels[some].sum(dim=1, keepdim=True)
    for temperature in (1.0, 2.5):
        expected = cross_entropy(logits[some] / temperature, shares)
        objective = objectives.SoftmaxCrossEntropy(temperature)
        torch.testing.assert_close(objective(logits, labels), expected)
        expected = (logits / temperature).softmax(dim=1)
        torch.testing.assert_close(objective.probabilities(logits), expected)


def test_none_is_one_more_class_of_torchs_cross_entropy():
    logits, labels = example(8)[0], torch.eye(6).double()[torch.arange(8) % 6, :5]
    wider = torch.cat([logits, torch.zeros(8, 1, dtype=torch.float64)], dim=1)
    classes = torch.where(labels.sum(dim=1) > 0, labels.argmax(dim=1), 5)
    objective = objectives.SoftmaxOrNone()
    assert 0 < (classes == 5).sum() < 8
    torch.testing.assert_close(objective(logits, labels), cross_entropy(wider, classes))
    torch.testing.assert_close(objective.probabilities(logits), wider.softmax(dim=1)[:, :5])
    log_p, log_q = objective.link.log_probs(logits)
    torch.testing.assert_close(log_p.exp() + log_q.exp(), torch.ones_like(log_p))


def test_softmax_or_none_starts_where_the_loss_of_the_priors_is_at_rest():
    priors = torch.tensor([0.3, 0.1, 0.15, 0.05, 0.2], dtype=torch.float64)
    logits = objectives.SoftmaxOrNone().start_logits(priors).requires_grad_()
    chances = torch.cat([priors, 1 - priors.sum(dim=0, keepdim=True)])
    labels = torch.eye(6, dtype=torch.float64)[:, :5]
    rows = [objectives.SoftmaxOrNone()(logits[None], row[None]) for row in labels]
    sum(chance * loss for chance, loss in zip(chances, rows, strict=True)).backward()
    assert logits.grad.abs().max() < 1e-12
    torch.testing.assert_close(
        objectives.SoftmaxOrNone()(logits.expand(6, 5), labels), sum(rows) / 6
    )


def test_the_normalisers_of_the_last_training_batch_are_kept_and_no_others():
    logits, labels = example()
    objective = objectives.SoftmaxCrossEntropy(2.0)
    objective(logits, labels)
    sums = [sum(exp(value / 2) for value in row) for row in logits.tolist()]
    kept = [objective.lowest_log_c.exp().item(), objective.highest_log_c.exp().item()]
    assert kept == pytest.approx([min(sums), max(sums)], rel=1e-5)
    objective.eval()(logits * 3, labels)
    assert objective.lowest_log_c.exp().item() == pytest.approx(min(sums), rel=1e-5)
    assert (
        objective.state_dict() == objectives.SoftmaxCrossEntropy().state_dict()
    )  # a checkpoint has none


SHARES = (0.5, 0.1, 0.01)


def sigmoid(x):
    return 1 / (1 + exp(-x))


def slow(logits, labels, observed):
    """The loss as the authors' code has it, with the constants of its MS-COCO configuration."""
    costs = []
    for v, y, seen in zip(logits, labels, observed, strict=True):
        repeated = sum(1 / s for s, here in zip(SHARES, y, strict=True) if here)
        for k, share in enumerate(SHARES):
            weight = 0.1 + (sigmoid(10 * (1 / share / repeated - 0.2)) if repeated else 1.0)
            z = v[k] - 0.05 / 2 * log(1 / share - 1)
            present = (1 - sigmoid(z)) ** 2 * log1p(exp(-z))
            absent = sigmoid(2 * z) ** 2 * log1p(exp(2 * z)) / 2
            costs += [2 * weight * (present if y[k] else absent)] * seen[k]
    return sum(costs) / len(costs)


def test_is_the_formula_entry_by_entry():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, 3, generator=generator, dtype=torch.float64)
    labels = (torch.rand(7, 3, generator=generator) < 0.4).double()
    labels[0] = 0
    observed = torch.rand(7, 3, generator=generator) < 0.8
    labels = torch.where(observed, labels, 0.0)
    expected = slow(logits.tolist(), labels.tolist(), observed.tolist())
    objective = make_objective("db", DatasetFacts(7, 3, 1.0, SHARES))
    found = objective(Outputs(logits), Targets(labels, observed))
    assert found.item() == pytest.approx(expected, rel=1e-9)
    assert objectives.DistributionBalanced((0.0, 1.0))(torch.zeros(2, 2), torch.eye(2)).isfinite()


RANDOM = example(4, 6)[0], one_hot(torch.tensor([4, 0, 5, 2]), 6)


def hard_limit(scores, labels, k, alpha=1.0):
    """Return max(0, alpha + (k-th largest other score - score of the label) / k), slowly."""
    losses = []
    for row, truth in zip(scores, labels, strict=True):
        rivals = sorted(row[truth == 0].tolist(), reverse=True)
        losses.append(max(0.0, alpha + (rivals[k - 1] - row[truth == 1].item()) / k))
    return torch.tensor(losses, dtype=torch.float64)


def test_golden_noised():
    case = golden.cases("noised_topk")["k=2 explicit noise"]
    scores, noise = (golden.tensor(case["inputs"][key]) for key in ("scores", "noise_Z"))
    losses = objectives.noised_top_k_loss(scores, noise, 2)
    golden.assert_golden(losses[[0, 1], [0, 2]], case["expected"]["per_sample"])


def test_gradient_is_the_mean_of_the_chosen_one_hots():
    scores = torch.tensor([[0.0, 0.1, 0.2, -9.0]], dtype=torch.float64, requires_grad=True)
    noise = torch.randn(1, 4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objectives.noised_top_k_loss(scores, noise, 1)[0, 3].backward()
    chosen = (scores.detach().unsqueeze(2) + noise).argsort(dim=1, descending=True)[0, 1]
    expected = one_hot(chosen, 4).double().mean(0) - torch.tensor([0, 0, 0, 1.0])
    torch.testing.assert_close(scores.grad[0], expected)


def test_the_noise_changes_with_the_step_and_comes_back_with_the_state():
    batch = RANDOM
    objective, other = (objectives.NoisedTopK(2, eps=1.0, seed=seed) for seed in (3, 4))
    first, second = objective(*batch), objective(*batch)
    assert first != second
    assert other(*batch) != first
    objective.load_state_dict(objectives.NoisedTopK(2).state_dict())
    assert objective(*batch) == first
    objective.eval()
    assert objective(*batch) == objective(*batch) == second


@pytest.mark.parametrize("name", golden.cases("smooth_topk"))
def test_golden_smooth(name):
    case = golden.cases("smooth_topk")[name]
    scores, params = golden.tensor([case["inputs"]["scores"]]), case["params"]
    labels = one_hot(torch.tensor([case["inputs"]["label"]]), 5)
    objective = objectives.SmoothTopK(params["k"], tau=params["tau"], alpha=params["alpha"])
    golden.assert_golden(objective(scores, labels), case["expected"]["loss"])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.data())
def test_symmetric_sums_are_sums_over_subsets(seed, count, data):
    k = data.draw(st.integers(1, count))
    generator = torch.Generator().manual_seed(seed)
    logs = 3 * torch.randn(1, count, generator=generator, dtype=torch.float64)
    for degree, found in zip((k - 1, k), log_symmetric_sums(logs, k), strict=True):
        subsets = [logs[0, list(subset)].sum() for subset in combinations(range(count), degree)]
        torch.testing.assert_close(found[0], torch.stack(subsets).logsumexp(0))


def test_hard_images_take_the_limit_and_it_fits_the_smooth_form():
    k, tau = 2, 0.1
    gap = k * tau * log(1000)
    row = torch.tensor([3.0, 3.0, 3.0 - gap - 1e-3, 0.5, 0.2], dtype=torch.float64)
    easy = row.clone()
    easy[2] += 2e-3  # just below the gap: smooth
    for label in range(5):
        labels = one_hot(torch.tensor([label]), 5)
        found = objectives.SmoothTopK(k, tau=tau)(row[None], labels)
        torch.testing.assert_close(found, hard_limit(row[None], labels, k).mean())
        smooth = objectives.smooth_top_k_loss(easy[None], labels, k, tau, 1.0)[0, label]
        assert smooth != hard_limit(easy[None], labels, k)[0]
        torch.testing.assert_close(smooth, found, atol=2 * tau * log(2), rtol=0)


@pytest.mark.parametrize("objective", [objectives.NoisedTopK(2, eps=0.0), objectives.SmoothTopK(2)])
def test_images_without_a_label_are_left_out_and_several_take_their_mean(objective):
    scores, labels = RANDOM
    alone = objective(scores[1:], labels[1:])
    none = labels.clone()
    none[0] = 0
    torch.testing.assert_close(objective(scores, none), alone)
    both = torch.zeros(1, 6)
    both[0, :2] = 1
    assert objective(scores[:1], both) > 0


def test_ten_thousand_labels_in_single_precision():
    scores = torch.randn(2, 10_000, requires_grad=True)
    labels = one_hot(torch.tensor([0, 1]), 10_000)
    loss = objectives.SmoothTopK(5, tau=0.1)(scores, labels)
    loss.backward()
    exact = objectives.SmoothTopK(5, tau=0.1)(scores.detach().double(), labels)
    torch.testing.assert_close(loss.detach().double(), exact, rtol=1e-5, atol=0)
    assert scores.grad.isfinite().all()


# Average-K two-head loss against golden vectors and a loop over the batch.


@pytest.mark.parametrize("name", golden.cases("avgk_loss"))
def test_golden_average_k(name):
    case = golden.cases("avgk_loss")[name]
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    logits, proposal = golden.tensor(inputs["ml_logits"]), golden.tensor(inputs["sccp_logits"])
    labels = one_hot(torch.tensor(inputs["labels"]), 4).double()
    parts = objectives.average_k_loss(logits, proposal, labels, params["K"], params["alpha"])
    for part, key in zip(parts, ("ce", "bce_obs", "bce_pseudo_pos", "bce_neg"), strict=True):
        golden.assert_golden(part, expected[key])
    outputs = Outputs(logits, {"proposal": proposal})
    loss = objectives.AverageK(params["K"], alpha=params["alpha"])(outputs, Targets(labels))
    golden.assert_golden(loss, expected["total"])
    chosen = objectives.average_k_candidates(proposal, labels, params["K"])
    assert [row.nonzero().flatten().tolist() for row in chosen] == expected["candidates"]
    truth = one_hot(torch.tensor([0, 1, 2, 3]), 5)  # ties still choose exactly as many
    assert objectives.average_k_candidates(torch.zeros(4, 5), truth, 2.5).sum() == 6


# Terms beside a loss, against golden vectors and loops over pairs.

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


SOFT_SHARES = torch.tensor(
    [[0.3, 0.0, 1.0, 0.6], [0.9, 0.8, 0.2, 1.0], [0.0, 0.0, 0.5, 0.0]]
).double()
SEEN = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("observed", [None, SEEN])
def test_soft_labels_cost_the_mean_over_all_hard_labels(observed, monkeypatch):
    logits = 2 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()

    def cost(labels):
        found = logits.clone().requires_grad_()
        loss = o.LabelPairs()(Outputs(found), Targets(labels, observed), o.BCE().link)
        return torch.stack([loss.detach().expand(3, 4), torch.autograd.grad(loss, found)[0]])

    shares = SOFT_SHARES if observed is None else torch.where(observed, SOFT_SHARES, 0.0)
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
    "sides",
    [(SOFT_SHARES, 1 - SOFT_SHARES), split_labels(SOFT_SHARES.round(), SEEN)],
    ids=["soft", "hard"],
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
